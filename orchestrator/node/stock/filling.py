"""How a tree is filled on a node: begun with what is here already, then sealed, or dropped.

With what completes a tree the folder of the run that it is for is made, in the same process.
"""

from __future__ import annotations

import io
import os

from ..base import trust
from ..base.annotations import Any
from ..base.fault import NodeError, unwritable
from ..base.lenient import discard
from ..base.paths import Paths
from ..base.tuples import NamedTuple
from ..disk import archive
from ..disk import incoming as receiving
from ..disk.removing import remove, remove_stale
from ..disk.untar import Stream
from ..serve.agent import Agent, Request
from . import reuse, work
from .trees import drop_it, folder_of, incoming_of, part_of, seal_it

_SECONDS = 1800.0  # to read, unpack and compare all of a tree
_STALE = 24 * 3600.0  # an incoming tree that was given up


def begin(agent: Agent, request: Request) -> None:
    """Make the folder that is to be a tree, and fill it with what is here already; the reply names the rest.

    The payload is a tar stream of files that will probably be it: where they are all of it, the tree is
    sealed at once, and the folder of the run `work` made from it.
    """
    incoming, manifest = incoming_of(agent, request), request["manifest"]
    tree = os.path.join(folder_of(request["workdir"]), request["digest"])
    agent.rooms.setdefault("manifests", {})[incoming] = manifest
    if trust.is_ours(tree):
        agent.reply(request, {"present": True})
        return
    paths = None if agent.state_error else agent.paths
    order = _Order(tree, incoming, manifest, paths, bool(request["reuse"]), request.payload)
    make_work = work.once_sealed(agent, request)

    def child() -> dict[str, Any]:
        reply = _begin(order)
        return {**reply, **make_work()} if reply.get("made") else reply

    agent.in_child(request, child, seconds=_SECONDS)


def receive(agent: Agent, request: Request) -> None:
    """One chunk of the tar stream with the rest of a tree, for hosts without rsync; see `disk.untar`."""
    part = part_of(incoming_of(agent, request))
    streams = agent.rooms.setdefault("untar", {})
    if part not in streams:
        streams[part] = Stream(agent, part, "tree_tar", any_link=True)  # `tree_seal` compares them
    stream = streams[part]
    if not request.get("more", False):
        del streams[part]
    stream.take(request)


def seal(agent: Agent, request: Request) -> None:
    """Compare what has come with the manifest (that of `begin`) and give it its name; then as `begin`."""
    incoming = incoming_of(agent, request)
    tree = os.path.join(folder_of(request["workdir"]), request["digest"])
    manifest = agent.rooms.get("manifests", {}).get(incoming, [])
    state = agent.state
    make_work = work.once_sealed(agent, request)

    def child() -> dict[str, Any]:
        return {**seal_it(incoming, tree, manifest, state), **make_work()}

    agent.in_child(request, child, seconds=_SECONDS)


def drop(agent: Agent, request: Request) -> None:
    """Remove what came of a tree that was given up."""
    incoming = incoming_of(agent, request)
    agent.in_child(request, lambda: drop_it(incoming), seconds=_SECONDS)


class _Order(NamedTuple):
    """A tree that is to be begun."""

    tree: str
    incoming: str
    manifest: list[dict[str, Any]]
    paths: Paths | None  # of the state folder
    reusing: bool  # what other trees have
    likely: bytes  # to be missing, as a tar stream


def _begin(order: _Order) -> dict[str, Any]:
    incoming, trees = order.incoming, os.path.dirname(order.tree)
    if order.paths is not None:
        receiving.remove_dead(order.paths)
    trust.check_way(*os.path.split(trees))
    try:
        drop_it(incoming)  # what an earlier try left
        os.makedirs(incoming)
        trust.check_way(*os.path.split(trees))
        remove_stale(trees, (".incoming-",), _STALE, incoming)
    except OSError as error:
        raise unwritable(trees, error) from None
    try:
        return _fill(order)
    except OSError as error:
        drop_it(incoming)
        raise unwritable(trees, error) from None


def _fill(order: _Order) -> dict[str, Any]:
    trees, incoming, manifest = os.path.dirname(order.tree), order.incoming, order.manifest
    state = order.paths.root if order.paths is not None else None
    filled = reuse.fill(state if order.reusing else None, trees, incoming, manifest)
    missing = [manifest[place]["path"] for place in filled.missing]
    if order.likely and _takes_all(order.likely, incoming, missing):
        seal_it(incoming, order.tree, manifest, state, filled.known)
        return {"present": True, "made": True}
    return {"incoming": incoming, "base": filled.base, "missing": filled.missing}


def _takes_all(likely: bytes, incoming: str, missing: list[str]) -> bool:
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
