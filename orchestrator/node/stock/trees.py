"""Source trees on a node: immutable, named by their digest, complete when they have their name.

    <workdir>/trees/<digest>                    a tree
    <workdir>/trees/.incoming-<digest>-<maker>-<id>     one that is being filled, by rsync or by `untar`
    <workdir>/trees/.incoming-...part                   what `untar` adds to it at the seal

The folder may be shared with other machines: what makes a tree is one rename.
"""

from __future__ import annotations

import io
import os
import stat
import time

from ..base import trust
from ..base.fault import NodeError
from ..base.paths import digest_name
from ..base.tuples import NamedTuple
from ..disk import archive
from ..disk import incoming as receiving
from ..disk.removing import discard, remove
from . import lending, reuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

    from ..base.paths import Paths
    from ..serve.agent import Agent, Request

_STALE = 24 * 3600.0  # an incoming tree that was given up
_SHOWN = 5  # wrong files that an error names
_VERIFY_SECONDS = 1800.0


def has(_agent: Agent, request: Request) -> Dict[str, Any]:
    """Those that are whole and ours: see `trust`."""
    trees = folder_of(request)
    trust.check_way(*os.path.split(trees))
    return {
        "present": [name for name in request["digests"] if _is_there(os.path.join(trees, digest_name(name)))]
    }


def begin(agent: Agent, request: Request) -> None:
    """Make the folder that is to be filled; asked again, the same one.

    With a `manifest` it is filled with what is here already, and the reply names the rest. The payload is
    a tar stream of files that will probably be it: where they are all of it, the tree is sealed at once.
    """
    incoming = incoming_of(agent, request)
    trees = folder_of(request)
    paths = None if agent.state_error else agent.paths
    manifest = request.get("manifest")
    if manifest is not None:
        agent.rooms.setdefault("manifests", {})[incoming] = manifest
        if _is_there(os.path.join(trees, digest_name(request["digest"]))):
            agent.reply(request, {"present": True})
            return
    tree = os.path.join(trees, request["digest"])
    reusing = bool(request.get("reuse", True))
    order = _Order(tree, incoming, manifest, paths, reusing, request.payload)
    agent.in_child(request, lambda: _begin(order), seconds=_VERIFY_SECONDS)


def seal(agent: Agent, request: Request) -> None:
    """Compare what has come with the manifest (that of `begin`) and give it its name."""
    incoming = incoming_of(agent, request)
    tree = os.path.join(folder_of(request), request["digest"])
    manifest = request.get("manifest") or agent.rooms.get("manifests", {}).get(incoming, [])
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


def walk(folder: str) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder that is no folder; links are not followed."""
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry


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
    manifest: Optional[List[Dict[str, Any]]]
    paths: Optional[Paths]  # of the state folder
    reusing: bool  # what other trees have
    likely: bytes  # to be missing, as a tar stream


def _begin(order: _Order) -> Dict[str, Any]:
    incoming, trees = order.incoming, os.path.dirname(order.tree)
    if order.paths is not None:
        receiving.remove_dead(order.paths)
    trust.check_way(*os.path.split(trees))
    try:
        if order.manifest is not None:
            _drop(incoming)  # what an earlier try left
        os.makedirs(incoming, exist_ok=True)
        trust.check_way(*os.path.split(trees))
        names = os.listdir(trees)
    except OSError as error:
        raise unwritable(trees, error) from None
    for name in names:
        path = os.path.join(trees, name)
        if name.startswith(".incoming-") and not path.startswith(incoming) and age(path) > _STALE:
            remove(path)
    if order.manifest is None:
        return {"incoming": incoming, "base": _newest(trees, names)}
    try:
        return _fill(order, order.manifest)
    except OSError as error:
        _drop(incoming)
        raise unwritable(trees, error) from None


def _fill(order: _Order, manifest: List[Dict[str, Any]]) -> Dict[str, Any]:
    trees, incoming = os.path.dirname(order.tree), order.incoming
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


def _newest(trees: str, names: List[str]) -> Optional[str]:
    """The tree that was used last; files of one that is not ours are not linked into a new one."""
    paths = [os.path.join(trees, name) for name in names if not name.startswith(".")]
    return next((path for path in sorted(paths, key=age) if _is_base(path)), None)


def _is_base(path: str) -> bool:
    try:
        return trust.is_ours(path)
    except (NodeError, OSError):
        return False


def age(path: str) -> float:
    try:
        return time.time() - os.lstat(path).st_mtime
    except OSError:
        return 0.0  # somebody else's, on its way


def _seal(
    incoming: str,
    tree: str,
    manifest: List[Dict[str, Any]],
    state: Optional[str] = None,
    known: Optional[Dict[reuse.Stat, str]] = None,
) -> Dict[str, Any]:
    """`known`: contents of files that need not be read again."""
    trust.check_way(*os.path.split(os.path.dirname(tree)))
    if _is_there(tree):  # another machine on this shared folder was faster
        _drop(incoming)
        return {"ok": True, "already": True}
    try:
        _merge(part_of(incoming), incoming)
        _set_aside(tree)
        wrong, found = _compare(incoming, manifest, reuse.Verified(state, os.path.dirname(tree), known))
        if wrong:
            raise _refuse(tree, wrong)
        lending.note(tree, manifest, found)
        os.utime(incoming)  # `begin` takes the newest as its base
        os.rename(incoming, tree)
        reuse.note(state, tree, manifest, found)
    except OSError as error:
        if not os.path.isdir(tree):
            raise unwritable(os.path.dirname(tree), error) from None
        remove(incoming)
        return {"ok": True, "already": True}
    return {"ok": True, "already": False}


def _set_aside(tree: str) -> None:
    """One that others could write, from a time with another umask, or a task has written to, makes room."""
    if os.path.lexists(tree):
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


def _compare(
    incoming: str, manifest: List[Dict[str, Any]], verified: reuse.Verified
) -> Tuple[List[str], List[os.stat_result]]:
    """What is wrong, a line per file, and what was seen of the others, both in the order of the manifest."""
    wrong, seen = [], []
    for entry in manifest:
        try:
            seen.append(_check(incoming, entry, verified))
        except _WrongError as error:
            wrong.append(f"{entry['path']}: {error}")
    known = {entry["path"] for entry in manifest}
    start = len(incoming) + 1
    for found in walk(incoming) if os.path.isdir(incoming) else ():
        path = found.path[start:]
        if path not in known:
            wrong.append(f"{path}: not in the manifest")
    return wrong, seen


class _WrongError(Exception):
    """Why a file is not what the manifest says."""


def _check(incoming: str, entry: Dict[str, Any], verified: reuse.Verified) -> os.stat_result:
    """What an entry of the manifest is like on the disk; raise _WrongError."""
    name = entry["path"]
    if name.startswith("/") or ".." in name.split("/"):
        raise _WrongError("out of the tree")
    path = f"{incoming}/{name}"
    try:
        found = os.lstat(path)
        if "link" in entry:
            if not stat.S_ISLNK(found.st_mode):
                raise _WrongError("not a symbolic link")
            if os.readlink(path) != entry["link"]:
                raise _WrongError(f"a link to {os.readlink(path)}")
            return found
        if not stat.S_ISREG(found.st_mode):
            raise _WrongError("not a file")
        if verified.content(found) != entry["sha256"] and _sha256(path) != entry["sha256"]:
            raise _WrongError(f"other content ({found.st_size} bytes)")
        if stat.S_IMODE(found.st_mode) != entry["mode"]:
            return _set_mode(path, found, entry["mode"])
    except FileNotFoundError:
        raise _WrongError("missing") from None
    return found


def _set_mode(path: str, found: os.stat_result, mode: int) -> os.stat_result:
    """A umask is no reason to fail; but a file shared with another tree is not ours to change."""
    if found.st_nlink > 1:
        raise _WrongError(f"mode {stat.S_IMODE(found.st_mode):o} instead of {mode:o}")
    os.chmod(path, mode)
    return os.lstat(path)


def _sha256(path: str) -> str:
    import hashlib

    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while True:
            data = file.read(1 << 20)
            if not data:
                return digest.hexdigest()
            digest.update(data)


def _refuse(tree: str, wrong: List[str]) -> NodeError:
    shown = "; ".join(wrong[:_SHOWN]) + ("; ..." if len(wrong) > _SHOWN else "")
    return NodeError(
        "tree",
        f"{len(wrong)} files of the tree {os.path.basename(tree)} did not arrive as they were sent",
        shown,
        "were they changed meanwhile? Sync again; if it stays, the disk or the network corrupts data",
    )
