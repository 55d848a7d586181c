"""Data sets on a node: immutable, named by their digest, complete when they have their name.

    <workdir>/data/<digest>                  what [data] names, as one folder
    <workdir>/data/.incoming-<digest>        one that is being filled; the next transfer resumes it
    <workdir>/data/.incoming-<digest>.pieces which pieces of it are there
    <workdir>/data/.lock-<digest>            held by whoever fills it; machines that share the folder wait;
                                             it stays, empty, until `clean` finds that nobody needs it

A child receives (`receiver`); here is the agent's side of it.
"""

from __future__ import annotations

import os

from ..base import trust
from ..base.annotations import Any
from ..base.fault import NodeError
from ..base.paths import absolute, digest_name, free_bytes
from ..serve import frames
from ..serve.agent import Agent, Request
from ..serve.loop import READ, Outbox
from ..task import leases
from . import receiver, wholeness

_SECONDS = 24 * 3600.0  # a large set on a slow line takes hours
_SHOWN = 5


def look(agent: Agent, request: Request) -> dict[str, Any]:
    """Whether the data is here: "whole", "damaged", "absent", or "unsure" where we have not verified it.

    By size and time of each file; with `thorough` every byte is read. What is in use is touched.
    """
    path = _path(request)
    data = os.path.dirname(path)
    trust.check_way(*os.path.split(data))
    free = free_bytes(data)
    if not trust.is_ours(path):
        return {"path": path, "state": "absent", "wrong": [], "free": free}
    noted = wholeness.noted(wholeness.notes_of(agent), path)
    if noted is None:
        return {"path": path, "state": "unsure", "wrong": [], "free": free}
    wrong = [
        name
        for name, digest, known in noted
        if not wholeness.is_same(os.path.join(path, name), known, digest if request["thorough"] else None)
    ]
    if wrong:
        wholeness.forget(wholeness.notes_of(agent), path)  # the next transfer reads all of it
    else:
        os.utime(path)
    return {"path": path, "state": "damaged" if wrong else "whole", "wrong": wrong[:_SHOWN], "free": free}


def begin(agent: Agent, request: Request) -> None:
    """Make the folder that is to be filled, from what is here already; the reply names the rest."""
    digest = digest_name(request["digest"])
    running = agent.rooms.setdefault("data", {})
    if digest in running and running[digest].outcome is None:
        raise NodeError("busy", "is receiving this data already, over this connection")
    running[digest] = _Transfer(agent, request, digest)


def piece(agent: Agent, request: Request) -> None:
    """One piece from the controller; answered when the child's pipe has taken it."""
    _running(agent, request).tell(request, {"piece": int(request["piece"])})


def peers(agent: Agent, request: Request) -> None:
    """Take pieces from these peers; a later request replaces an earlier one."""
    transfer = _running(agent, request)
    transfer.idle = -1
    transfer.tell(request, {"peers": request["sources"], "plan": int(request["plan"])})


def have(agent: Agent, request: Request) -> dict[str, Any]:
    """What has come so far, which plan is at its end, and what was wrong with peers since the last look."""
    transfer = _running(agent, request)
    trouble, transfer.trouble = transfer.trouble, []
    return {
        "bits": f"{transfer.bits:x}",
        "idle": transfer.idle,
        "trouble": trouble,
        "waits": transfer.waits,
    }


def seal(agent: Agent, request: Request) -> None:
    """Give what is complete its name; the reply is the child's last word."""
    transfer = _running(agent, request)
    transfer.waiting = request
    transfer.feed.put(frames.encode({"seal": True}))


def drop(agent: Agent, request: Request) -> dict[str, Any]:
    """End a transfer; what has come stays for the next one."""
    transfer = agent.rooms.setdefault("data", {}).pop(digest_name(request["digest"]), None)
    if transfer is not None:
        transfer.feed.close()
    return {}


def _running(agent: Agent, request: Request) -> _Transfer:
    found = agent.rooms.setdefault("data", {}).get(digest_name(request["digest"]))
    if found is None:
        raise NodeError("data", "does not receive this data")
    if found.outcome is not None:
        raise found.outcome
    transfer: _Transfer = found
    return transfer


class _Transfer:
    """The agent's side of a child that receives."""

    def __init__(self, agent: Agent, request: Request, digest: str) -> None:
        self.bits = 0
        self.idle = -1  # the plan that is at its end
        self.waits = False  # for another transfer of the same data
        self.trouble: list[dict[str, str]] = []
        self.waiting: Request | None = request  # for the child's next word
        self.outcome: NodeError | None = None
        self._agent = agent
        self._digest = digest
        self._untold: dict[int, Request] = {}  # that the child has not taken yet
        self._decoder = frames.Decoder()
        order = _order(agent, request)
        reader, writer = os.pipe()
        self._told, tell = os.pipe()
        self.feed = Outbox(agent.loop, writer)
        try:
            agent.jobs.run(
                "data",
                lambda: receiver.receive(order, reader, tell),
                self._ended,
                seconds=_SECONDS,
                keep=(reader, tell),
            )
        except NodeError:
            self.feed.close()
            os.close(self._told)
            raise
        finally:
            os.close(reader)
            os.close(tell)
        os.set_blocking(self._told, False)
        agent.loop.watch(self._told, READ, self._hear)

    def tell(self, request: Request, header: dict[str, Any]) -> None:
        """Hand a request on to the child; answered when that has taken it, or is gone."""
        self._untold[id(request)] = request

        def taken() -> None:
            del self._untold[id(request)]
            self._agent.reply(request, {})

        self.feed.put(frames.encode(header, request.payload), taken)

    def _hear(self) -> None:
        try:
            data = os.read(self._told, 1 << 18)
        except BlockingIOError:
            return
        if not data:
            self._agent.loop.unwatch(self._told)
            os.close(self._told)
            return
        for word, _ in self._decoder.feed(data):
            self._take(word)

    def _take(self, word: dict[str, Any]) -> None:
        if "piece" in word:
            self.bits |= 1 << int(word["piece"])
        elif "idle" in word:
            self.idle = int(word["idle"])
        elif "trouble" in word:
            self.trouble.append(word["trouble"])
        elif "waits" in word:
            self.waits = True
        elif self.waiting is not None:
            self.waits = False
            self.bits = int(word["bits"], 16)
            request, self.waiting = self.waiting, None
            self._agent.reply(request, word)

    def _ended(self, outcome: tuple[dict[str, Any], bytes]) -> None:
        """The child has sealed, found the data whole at the start, or failed."""
        self.feed.close()
        reply = outcome[0]
        request, self.waiting = self.waiting, None
        if not reply.get("ok"):
            self.outcome = NodeError(**reply["error"])
        for untold in self._untold.values():
            self._agent.fail(untold, self.outcome or NodeError("data", "the transfer has ended"))
        self._untold.clear()
        running = self._agent.rooms["data"]
        if request is not None:
            if running.get(self._digest) is self:
                del running[self._digest]
            self._agent.send({"id": request.id, **reply})


def _order(agent: Agent, request: Request) -> receiver.Order:
    paths = None if agent.state_error else agent.paths
    wanted = [int(port) for port in request["ports"]]
    return receiver.Order(
        _path(request),
        wholeness.notes_of(agent),
        request["manifest"],
        int(request["size"]),
        request.payload,
        str(request["key"]),
        bool(request["serve"]),
        [one for one in wanted if leases.leased(one, paths, str(request["run"])) is None],
    )


def _path(request: Request) -> str:
    return os.path.join(absolute(request["workdir"]), "data", digest_name(request["digest"]))
