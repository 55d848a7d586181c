"""Source trees on a node: immutable, named by their digest, complete when they have their name.

    <workdir>/trees/<digest>                    a tree
    <workdir>/trees/.incoming-<digest>-<maker>-<id>     one that is being filled, by rsync or by `untar`
    <workdir>/trees/.incoming-...part                   what `untar` adds to it at the seal

The folder may be shared with other machines: what makes a tree is one rename.
"""

from __future__ import annotations

import io
import os
import time

from ..base import trust
from ..base.fault import NodeError
from ..base.lenient import changed, discard
from ..base.paths import digest_name
from ..base.tuples import NamedTuple
from ..disk import archive
from ..disk import incoming as receiving
from ..disk.removing import remove
from . import lending, reuse
from .comparison import compare, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from ..base.paths import Paths
    from ..serve.agent import Agent, Request

_STALE = 24 * 3600.0  # an incoming tree that was given up
_SHOWN = 5  # wrong files that an error names
_VERIFY_SECONDS = 1800.0


def begin(agent: Agent, request: Request) -> None:
    """Make the folder that is to be a tree, and fill it with what is here already; the reply names the rest.

    The payload is a tar stream of files that will probably be it: where they are all of it, the tree is
    sealed at once.
    """
    incoming, manifest = incoming_of(agent, request), request["manifest"]
    tree = os.path.join(folder_of(request), request["digest"])
    agent.rooms.setdefault("manifests", {})[incoming] = manifest
    if _is_there(tree):
        agent.reply(request, {"present": True})
        return
    paths = None if agent.state_error else agent.paths
    order = _Order(tree, incoming, manifest, paths, bool(request["reuse"]), request.payload)
    agent.in_child(request, lambda: _begin(order), seconds=_VERIFY_SECONDS)


def seal(agent: Agent, request: Request) -> None:
    """Compare what has come with the manifest (that of `begin`) and give it its name."""
    incoming = incoming_of(agent, request)
    tree = os.path.join(folder_of(request), request["digest"])
    manifest = agent.rooms.get("manifests", {}).get(incoming, [])
    state = None if agent.state_error else agent.paths.root
    agent.in_child(request, lambda: _seal(incoming, tree, manifest, state), seconds=_VERIFY_SECONDS)


def _is_there(tree: str) -> bool:
    return trust.is_ours(tree) and lending.is_whole(tree)


def drop(agent: Agent, request: Request) -> None:
    """Remove what came of a tree that was given up."""
    incoming = incoming_of(agent, request)
    agent.in_child(request, lambda: _drop(incoming), seconds=_VERIFY_SECONDS)


def _drop(incoming: str) -> Dict[str, Any]:
    for path in (incoming, part_of(incoming)):
        remove(path)
    return {}


def folder_of(request: Request) -> str:
    return os.path.join(os.path.abspath(os.path.expanduser(request["workdir"])), "trees")


def incoming_of(agent: Agent, request: Request) -> str:
    """This agent's own incoming folder for a digest."""
    trees, digest = folder_of(request), digest_name(request["digest"])
    known = agent.rooms.setdefault("incoming", {})
    if (trees, digest) not in known:
        path = os.path.join(trees, f".incoming-{digest}-{os.urandom(6).hex()}")
        known[trees, digest] = path
        for folder in (path, part_of(path)):
            receiving.hold(agent, folder)
    found: str = known[trees, digest]
    return found


def part_of(incoming: str) -> str:
    """Where a stream goes that adds to an incoming tree."""
    return f"{incoming}.part"


def unwritable(path: str, error: OSError) -> NodeError:
    return NodeError(
        "workdir",
        f"cannot write {path}",
        error.strerror or str(error),
        "make room, or set `workdir` to a folder that this user may write",
    )


class _Order(NamedTuple):
    """A tree that is to be begun."""

    tree: str
    incoming: str
    manifest: List[Dict[str, Any]]
    paths: Optional[Paths]  # of the state folder
    reusing: bool  # what other trees have
    likely: bytes  # to be missing, as a tar stream


def _begin(order: _Order) -> Dict[str, Any]:
    incoming, trees = order.incoming, os.path.dirname(order.tree)
    if order.paths is not None:
        receiving.remove_dead(order.paths)
    trust.check_way(*os.path.split(trees))
    try:
        _drop(incoming)  # what an earlier try left
        os.makedirs(incoming)
        trust.check_way(*os.path.split(trees))
        names = os.listdir(trees)
    except OSError as error:
        raise unwritable(trees, error) from None
    for name in names:
        path = os.path.join(trees, name)
        if name.startswith(".incoming-") and not path.startswith(incoming) and age(path) > _STALE:
            remove(path)
    try:
        return _fill(order)
    except OSError as error:
        _drop(incoming)
        raise unwritable(trees, error) from None


def _fill(order: _Order) -> Dict[str, Any]:
    trees, incoming, manifest = os.path.dirname(order.tree), order.incoming, order.manifest
    lender = lending.Lender(trees, order.paths)
    state = order.paths.root if order.paths is not None else None
    filled = reuse.fill(state if order.reusing else None, trees, incoming, manifest, lender)
    missing = [manifest[place]["path"] for place in filled.missing]
    if order.likely and _takes_all(order.likely, incoming, missing):
        _seal(incoming, order.tree, manifest, state, filled.known)
        return {"present": True, "made": True}
    return {"incoming": incoming, "base": filled.base, "missing": filled.missing}


def _takes_all(likely: bytes, incoming: str, missing: List[str]) -> bool:
    """Unpack what came along for the seal to merge; False, and nothing, unless it is all that is missing."""
    part = part_of(incoming)
    try:
        os.makedirs(part)
        came = archive.unpack(io.BytesIO(likely), part, any_link=True)
        if came.keys() >= set(missing):
            for name in came.keys() - set(missing):
                discard(os.path.join(part, name))
            return True
    except (OSError, NodeError):
        pass  # the disk is full, or no stream: it is asked for
    remove(part)
    return False


def age(path: str) -> float:
    """Seconds since it was changed; 0 for what somebody else takes away just now."""
    now = time.time()
    return now - changed(path, now)


def _seal(
    incoming: str,
    tree: str,
    manifest: List[Dict[str, Any]],
    state: Optional[str] = None,
    known: Optional[Dict[reuse.Stat, str]] = None,
) -> Dict[str, Any]:
    """`known`: contents of files that need not be read again."""
    trust.check_way(*os.path.split(os.path.dirname(tree)))
    try:
        _merge(part_of(incoming), incoming)
        if os.path.lexists(tree):
            if _is_there(tree):  # another machine on this shared folder was faster
                return _drop_for(incoming)
            _set_aside(tree)
        wrong, found = compare(incoming, manifest, reuse.Verified(state, os.path.dirname(tree), known))
        if wrong:
            raise _refuse(tree, wrong)
        if _is_there(tree):  # meanwhile: the list of its large files is not to be ours
            return _drop_for(incoming)
        lending.note(tree, manifest, found)
        os.utime(incoming)  # `clean` counts its age from now
        os.rename(incoming, tree)
        reuse.note(state, tree, manifest, found)
    except OSError as error:
        if not os.path.isdir(tree):
            raise unwritable(os.path.dirname(tree), error) from None
        return _drop_for(incoming)
    return {"ok": True, "already": False}


def _drop_for(incoming: str) -> Dict[str, Any]:
    """In favour of a tree that is there already."""
    _drop(incoming)
    return {"ok": True, "already": True}


def _set_aside(tree: str) -> None:
    """One that others could write, from a time with another umask, or a task has written to, makes room."""
    above, name = os.path.split(tree)
    gone = os.path.join(above, f".gone-{name}-{os.urandom(6).hex()}")
    os.rename(tree, gone)
    remove(gone)


def _merge(part: str, incoming: str) -> None:
    """Move what a stream brought to where it belongs."""
    if not os.path.isdir(part):
        return
    for found in walk(part):
        target = os.path.join(incoming, os.path.relpath(found.path, part))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(found.path, target)
    remove(part)


def _refuse(tree: str, wrong: List[str]) -> NodeError:
    shown = "; ".join(wrong[:_SHOWN]) + ("; ..." if len(wrong) > _SHOWN else "")
    return NodeError(
        "tree",
        f"{len(wrong)} files of the tree {os.path.basename(tree)} did not arrive as they were sent",
        shown,
        "were they changed meanwhile? Sync again; if it stays, the disk or the network corrupts data",
    )
