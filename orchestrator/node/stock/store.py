"""The store of a node, the agent's side: folders by their manifests, filled by a child (`receiver`)."""

from __future__ import annotations

import os

from ..base import trust
from ..base.descriptors import close_all
from ..base.fault import NodeError
from ..base.lenient import touch
from ..base.paths import absolute
from ..disk.removing import hide_and_remove
from ..serve import frames
from ..serve.agent import Agent, Request
from ..serve.frames import Json
from ..serve.loop import READ, Outbox
from ..task import leases
from . import notes, receiver
from .manifest import Manifest
from .pieces import is_exactly

_SECONDS = 24 * 3600.0  # a large set on a slow line takes hours


def look(agent: Agent, request: Request) -> Json:
    """Return whether a folder is complete, by the size and time of each file; this counts as a use."""
    path = absolute(request["path"])
    trust.check_way(*os.path.split(os.path.dirname(path)))
    if not trust.is_ours(path):
        return {"path": path, "state": "absent"}
    unchanged = notes.is_unchanged(agent.state, path)
    if unchanged is None:
        return {"path": path, "state": "unsure"}
    if not unchanged:
        notes.forget(agent.state, path)  # the next transfer reads all of it
        return {"path": path, "state": "absent"}
    touch(path)
    return {"path": path, "state": "whole"}


def begin(agent: Agent, request: Request) -> None:
    """Have a child fill a folder; the reply names what it already has, or that it is complete."""
    path = absolute(request["path"])
    running = agent.rooms.setdefault("store", {})
    if path in running and running[path].outcome is None:
        raise NodeError("busy", "is already receiving this over this connection")
    running[path] = _Transfer(agent, request, path)


def put(agent: Agent, request: Request) -> None:
    """Take pieces from the controller; the reply is sent when the child's pipe has taken them."""
    _running(agent, request).put(request)


def have(agent: Agent, request: Request) -> Json:
    """Return what has arrived, and whether a peer still serves, or its problem."""
    transfer = _running(agent, request)
    if request.get("source") is not None:
        transfer.idle, transfer.trouble = False, ""
        transfer.feed.put(frames.encode({"peer": request["source"]}))
    return {"bits": f"{transfer.bits:x}", "idle": transfer.idle, "trouble": transfer.trouble}


def seal(agent: Agent, request: Request) -> None:
    """Rename a complete folder to its final name; the reply is the child's result."""
    transfer = _running(agent, request)
    transfer.waiting = request
    transfer.feed.put(frames.encode({"seal": True}))


def drop(agent: Agent, request: Request) -> None:
    """End a transfer, whose data stays; with `remove` remove the folder."""
    path = absolute(request["path"])
    transfer = agent.rooms.setdefault("store", {}).pop(path, None)
    if transfer is not None:
        transfer.feed.close()
    if not request.get("remove", False):
        agent.reply(request, {})
        return

    def child() -> Json:
        real = os.path.realpath(path)
        if request.payload and os.path.lexists(real) and not os.path.isdir(real):
            raise NodeError("files", f"cannot read {path}", "it is no folder")
        is_meant = not request.payload or is_exactly(real, Manifest.decode(request.payload))
        if is_meant and os.path.lexists(real):
            hide_and_remove(real)
        return {}

    agent.in_child(request, child, seconds=_SECONDS)


def _running(agent: Agent, request: Request) -> _Transfer:
    transfer: _Transfer | None = agent.rooms.setdefault("store", {}).get(absolute(request["path"]))
    if transfer is None:
        raise NodeError("store", "does not receive this")
    if transfer.outcome is not None:
        raise transfer.outcome
    return transfer


class _Transfer:
    """The agent's side of a child that receives."""

    def __init__(self, agent: Agent, request: Request, path: str) -> None:
        self.bits = 0
        self.idle = True  # it fetches nothing from a peer
        self.trouble = ""  # of the last peer
        self.waiting: Request | None = request  # for the child's next message
        self.outcome: NodeError | None = None
        self._agent = agent
        self._path = path
        self._untaken: dict[int, Request] = {}  # that the child has not read yet
        self._decoder = frames.Decoder()
        mutable, run = bool(request["mutable"]), str(request["run"])
        order = receiver.Order(
            os.path.realpath(path) if mutable else path,
            mutable,
            agent.state,
            Manifest.decode(request.payload),
            str(request["key"]),
            bool(request["serve"]),
            [port for port in request["ports"] if leases.leased(agent, port, run) is None],
        )
        reader, writer = os.pipe()
        self._updates, tell = os.pipe()
        self.feed = Outbox(agent.loop, writer)
        try:
            agent.jobs.run(
                "store",
                lambda: receiver.receive(order, reader, tell),
                self._ended,
                seconds=_SECONDS,
                keep=(reader, tell),
            )
        except NodeError:
            self.feed.close()
            os.close(self._updates)
            raise
        finally:
            close_all(reader, tell)
        os.set_blocking(self._updates, False)
        agent.loop.watch(self._updates, READ, self._hear)

    def put(self, request: Request) -> None:
        """Pass pieces on to the child; reply when it has taken them, or is gone."""
        self._untaken[id(request)] = request

        def taken() -> None:
            if self._untaken.pop(id(request), None) is not None:
                self._agent.reply(request, {})

        pieces = list(map(int, request["pieces"]))
        word = {"pieces": pieces, "start": int(request.get("start", 0))}
        self.feed.put(frames.encode(word, request.payload), taken)

    def _hear(self) -> None:
        try:
            data = os.read(self._updates, 1 << 18)
        except BlockingIOError:
            return
        if not data:
            self._agent.loop.unwatch(self._updates)
            os.close(self._updates)
        for word, _ in self._decoder.feed(data):
            if "piece" in word:
                self.bits |= 1 << int(word["piece"])
            elif "idle" in word:
                self.idle, self.trouble = True, str(word["idle"])
            elif self.waiting is not None:
                self.bits = int(word["bits"], 16)
                request, self.waiting = self.waiting, None
                self._agent.reply(request, word)

    def _ended(self, outcome: tuple[Json, bytes]) -> None:
        """The child has sealed, found the folder complete at the start, or failed."""
        self.feed.close()
        reply = outcome[0]
        request, self.waiting = self.waiting, None
        if not reply.get("ok"):
            self.outcome = NodeError(**reply["error"])
        for untaken in self._untaken.values():
            self._agent.fail(untaken, self.outcome or NodeError("store", "the transfer has ended"))
        self._untaken.clear()
        running = self._agent.rooms["store"]
        if request is not None:
            if running.get(self._path) is self:
                del running[self._path]
            self._agent.send({"id": request.id, **reply})
