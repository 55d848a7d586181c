"""Source trees on a node: immutable, named by their digest, complete when they have their name.

    <workdir>/trees/<digest>                    a tree
    <workdir>/trees/.incoming-<digest>-<maker>-<id>     one that is being filled, by rsync or by `untar`
    <workdir>/trees/.incoming-...part                   what `untar` adds to it at the seal
    <workdir>/trees/.lock-<digest>                      held while it gets its name

The folder may be shared with other machines: what makes a tree is one rename.
"""

from __future__ import annotations

import os

from ..base import locks, trust
from ..base.annotations import Any
from ..base.fault import NodeError, unwritable
from ..base.lenient import discard
from ..base.paths import absolute, digest_name
from ..disk import incoming as receiving
from ..disk.removing import remove
from ..serve.agent import Agent, Request
from . import reuse
from .comparison import compare, walk

_PATIENCE = 30.0  # seconds: for a look at all of a tree, and two renames
_SHOWN = 5  # wrong files that an error names


def drop_it(incoming: str) -> dict[str, Any]:
    for path in (incoming, part_of(incoming)):
        remove(path)
    return {}


def folder_of(workdir: str) -> str:
    return os.path.join(absolute(workdir), "trees")


def incoming_of(agent: Agent, request: Request) -> str:
    """This agent's own incoming folder for a digest."""
    trees, digest = folder_of(request["workdir"]), digest_name(request["digest"])
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


def seal_it(
    incoming: str,
    tree: str,
    manifest: list[dict[str, Any]],
    state: str | None = None,
    known: dict[reuse.Stat, str] | None = None,
) -> dict[str, Any]:
    """`known`: contents of files that need not be read again."""
    trust.check_way(*os.path.split(os.path.dirname(tree)))
    try:
        _merge(part_of(incoming), incoming)
        if trust.is_ours(tree):  # another machine on this shared folder was faster
            return _drop_for(incoming)
        wrong, found = compare(incoming, manifest, reuse.Verified(state, os.path.dirname(tree), known))
        if wrong:
            raise _refuse(tree, wrong)
        if not _name(incoming, tree):
            return _drop_for(incoming)
        reuse.note(state, tree, manifest, found)
    except OSError as error:
        if not os.path.isdir(tree):
            raise unwritable(os.path.dirname(tree), error) from None
        return _drop_for(incoming)
    return {"ok": True, "already": False}


def _name(incoming: str, tree: str) -> bool:
    """Give a verified tree its name, in place of a damaged one; False where another machine has done it."""
    above, name = os.path.split(tree)
    gone = os.path.join(above, f".gone-{name}-{os.urandom(6).hex()}")
    with _Alone(os.path.join(above, f".lock-{name}")):
        if trust.is_ours(tree):
            return False
        if os.path.lexists(tree):  # others could write to it, by an old umask
            try:
                os.rename(tree, gone)
            except FileNotFoundError:
                pass  # there are no locks, and another machine was faster
        os.utime(incoming)  # `clean` counts its age from now
        os.rename(incoming, tree)
    remove(gone)
    return True


class _Alone:
    """In a `with`: of those that name a tree, one at a time, as far as its file system has locks."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._held: int | None = None

    def __enter__(self) -> None:
        try:
            self._held = locks.hold(self._path, _PATIENCE)
        except OSError:
            pass

    def __exit__(self, *_: object) -> None:
        if self._held is not None:
            discard(self._path)  # while it is held: who waits for it makes another one
            os.close(self._held)


def _drop_for(incoming: str) -> dict[str, Any]:
    """In favour of a tree that is there already."""
    drop_it(incoming)
    return {"ok": True, "already": True}


def _merge(part: str, incoming: str) -> None:
    """Move what a stream brought to where it belongs."""
    if not os.path.isdir(part):
        return
    for found in walk(part):
        target = os.path.join(incoming, os.path.relpath(found.path, part))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(found.path, target)
    remove(part)


def _refuse(tree: str, wrong: list[str]) -> NodeError:
    shown = "; ".join(wrong[:_SHOWN]) + ("; ..." if len(wrong) > _SHOWN else "")
    return NodeError(
        "tree",
        f"{len(wrong)} files of the tree {os.path.basename(tree)} did not arrive as they were sent",
        shown,
        "were they changed meanwhile? Sync again; if it stays, the disk or the network corrupts data",
    )
