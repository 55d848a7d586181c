"""Bringing data to hosts that lack it: each piece leaves this machine once, the hosts give it to each other.

In rounds: a plan says who gets which piece from whom; what a peer did not give is planned again without
that pair, at the end from here. What has come stays when a round, or all of it, is interrupted.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.events import DataStepped, Noted
from orchestrator.fleet import Fleet, Session, host_name
from orchestrator.model import Host
from orchestrator.phases.context import Emit, log
from orchestrator.planning import spread
from orchestrator.sync import Dataset, Throttle, one_time_key
from orchestrator.sync.conversation import RequestWindow

_LIMIT = 2 * 3600.0  # seconds; a slow line takes its time
_WINDOW = 2  # pieces that are on their way to one host
_FLYING = 32  # and to all of them
_GLANCE = 0.25  # seconds between two looks at what a host has
_TOLD = 1.0  # seconds between two words about it
_STALL = 15.0  # seconds in which nothing comes from peers, while nothing is sent from here


@dataclass(frozen=True)
class TransferOptions:
    """How data is to be sent."""

    direct: bool = False  # from here to each host, nothing from host to host
    limit: float | None = None  # bytes per second that leave this machine
    thorough: bool = False  # every byte of what is there already is read
    run: str = "push"  # whose leases of ports are our own


@dataclass(frozen=True)
class Came:
    """What one host has received."""

    path: str
    sent: int  # bytes from here
    peers: int  # bytes from other hosts
    seconds: float


class Transfer:
    """One data set on its way to the hosts that lack it."""

    def __init__(self, fleet: Fleet, data: Dataset, options: TransferOptions, emit: Emit) -> None:
        self._fleet = fleet
        self._data = data
        self._options = options
        self._emit = emit
        self._key = one_time_key()
        self._throttle = Throttle(options.limit)
        self._flying = threading.Semaphore(_FLYING)
        self._lock = threading.Lock()
        self._hosts: dict[str, Host] = {}
        self._lacks: dict[str, set[int]] = {}
        self._ports: dict[str, int] = {}
        self._paths: dict[str, str] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._bad: dict[str, HostError] = {}
        self._sent: dict[str, int] = {}
        self._lacked: dict[str, int] = {}  # bytes, at the beginning
        self._said: dict[str, float] = {}
        self._number = 0  # of the plan
        self._sending = 0  # hosts that are still sent to
        self._broken = threading.Event()  # a host was lost in this round

    def run(
        self, lacking: Sequence[Host], whole: Sequence[Host]
    ) -> tuple[dict[str, Came], dict[str, HostError]]:
        """Make `lacking` have it, with the help of those that are `whole`; what came, and what went wrong."""
        began = time.monotonic()
        helpers = [] if self._options.direct else list(whole)
        self._hosts = {host.name: host for host in (*lacking, *helpers)}
        self._lacks = {name: set() for name in self._hosts}  # in their order
        try:
            self._each(lacking, lambda host: self._begin(host, serve=False))
            if any(self._lacks.values()):
                self._each(helpers, lambda host: self._begin(host, serve=True))
            while any(self._lacks.values()):
                self._round()
            waiting = [host for host in lacking if host.name in self._lacks]
            self._each(waiting, self._seal)
        finally:
            self._drop()
        seconds = time.monotonic() - began
        came = {
            host.name: Came(
                self._paths[host.name],
                self._sent.get(host.name, 0),
                max(0, self._lacked.get(host.name, 0) - self._sent.get(host.name, 0)),
                seconds,
            )
            for host in lacking
            if host.name in self._paths and host.name not in self._bad
        }
        return came, {host.name: self._bad[host.name] for host in lacking if host.name in self._bad}

    def _each(self, hosts: Sequence[Host], work: Callable[[Host], None]) -> None:
        """Side by side; a host with an error takes no further part."""
        answers = self._fleet.each(hosts, host_name, work, pool=max(1, len(hosts)))
        for name, error in answers.bad.items():
            self._give_up(name, error)

    def _give_up(self, name: str, error: HostError) -> None:
        log.warning("data: %s %s: %s", name, error.what, error.why)
        with self._lock:
            self._bad.setdefault(name, error)
            self._lacks.pop(name, None)
            self._ports.pop(name, None)
        self._broken.set()

    def _begin(self, host: Host, *, serve: bool) -> None:
        session = self._fleet.session(host.name)
        self._emit(DataStepped(host.name, "looks at what is there", 0, self._data.total))
        request = wire.DataBegin(
            workdir=host.workdir,
            digest=self._data.digest,
            run=self._options.run,
            manifest=self._data.manifest,
            size=self._data.size,
            pieces=self._data.pieces,
            key="" if self._options.direct else self._key,
            ports=[host.task_port + place for place in range(host.tasks)],
            serve=serve,
        )
        begun = self._begun(session, request)
        with self._lock:
            self._paths[host.name] = begun.path
            absent = _absent(begun.bits, self._data.pieces)
            if begun.present or (serve and absent):
                self._lacks.pop(host.name)
                return
            self._lacks[host.name] = absent
            self._lacked[host.name] = sum(map(self._data.length, self._lacks[host.name]))
            if begun.port and not self._options.direct:
                self._ports[host.name] = begun.port

    def _begun(self, session: Session, request: wire.DataBegin) -> wire.DataBegun:
        """The answer; whom it waits for is said, once."""
        future = session.submit(request, self._data.digests)
        deadline = time.monotonic() + _LIMIT
        have = wire.DataHave(digest=self._data.digest, pieces=self._data.pieces)
        while wait([future], _TOLD).not_done and time.monotonic() < deadline:
            with contextlib.suppress(HostError):  # it has just ended: its answer is on the way
                if session.request(have).waits:
                    self._emit(Noted(f"{session.host.name} waits for another transfer of the same data"))
                    break
        return session.wait(future, wire.DataBegin.OP, max(1.0, deadline - time.monotonic()))

    def _round(self) -> None:
        """One plan, until it is done or a host is lost; then who lacks what is known again."""
        self._number += 1
        self._broken.clear()
        plan = spread.plan(self._lacks, self._ports, self._blocked)
        taking = [self._hosts[name] for name, pieces in self._lacks.items() if pieces]
        self._sending = len(taking)
        self._each(taking, lambda host: self._one(host, plan.sends[host.name], plan.pulls[host.name]))

    def _one(self, host: Host, sends: Sequence[int], pulls: Mapping[str, Sequence[int]]) -> None:
        """One host's part of a round."""
        session = self._fleet.session(host.name)
        try:
            sources = [
                wire.DataSource(peer, self._hosts[peer].address, port, pieces)
                for peer, pieces in pulls.items()
                if (port := self._ports.get(peer)) is not None
            ]
            request = wire.DataPeers(digest=self._data.digest, plan=self._number, sources=sources)
            session.request(request, timeout=_LIMIT)
            self._send(session, sends)
        finally:
            with self._lock:
                self._sending -= 1
        self._await(session, sends, pulls)
        if not self._broken.is_set() and (kept := self._lacks[host.name].intersection(sends)):
            what = f"does not keep what it is sent ({len(kept)} pieces)"
            raise _forgetful(host.name, what, "it took them and says that it does not have them")

    def _send(self, session: Session, pieces: Sequence[int]) -> None:
        window = RequestWindow(session, wire.DataPiece, _WINDOW, _LIMIT)
        for piece in pieces:
            if self._broken.is_set():
                break
            if window.full:
                window.take()
                self._look(session)
            self._throttle.wait(self._data.length(piece))
            self._flying.acquire()
            try:
                data = self._data.read(piece)
                future = window.submit(wire.DataPiece(digest=self._data.digest, piece=piece), data)
            except BaseException:
                self._flying.release()
                raise
            future.add_done_callback(lambda _: self._flying.release())
            with self._lock:
                self._sent[session.host.name] = self._sent.get(session.host.name, 0) + len(data)
        window.finish()

    def _await(self, session: Session, sends: Sequence[int], pulls: Mapping[str, Sequence[int]]) -> None:
        """Until the host has done its part of the plan; a peer that gave nothing is not asked again."""
        name = session.host.name
        came, since = len(self._lacks[name]), time.monotonic()
        while True:
            idle = self._look(session)
            left = len(self._lacks[name])
            # What was sent may still be in a pipe there.
            if not left or self._broken.is_set() or (idle and self._lacks[name].isdisjoint(sends)):
                break
            if left != came or self._sending:
                came, since = left, time.monotonic()
            elif time.monotonic() - since > _STALL:
                log.warning("data: nothing comes to %s any more", name)
                break
            self._broken.wait(_GLANCE)
        if not self._broken.is_set():
            absent = self._lacks[name]
            with self._lock:
                self._blocked.update((name, peer) for peer, pieces in pulls.items() if absent & set(pieces))

    def _look(self, session: Session) -> bool:
        """Learn what a host has by now; whether its part of the plan is at its end."""
        name, data = session.host.name, self._data
        held = session.request(wire.DataHave(digest=data.digest, pieces=data.pieces), timeout=_LIMIT)
        absent = _absent(held.bits, data.pieces)
        with self._lock:
            # Without this a host that forgets and remembers would be sent to for ever, and all wait for it.
            if lost := len(absent - self._lacks[name]):
                what = f"has lost what it had ({lost} pieces)"
                raise _forgetful(name, what, "it said that it has them, and now that it has not")
            self._lacks[name] = absent
            for one in held.trouble:
                log.warning("data: %s gets nothing from %s: %s", name, one.host, one.why)
                if one.host in self._hosts:
                    self._blocked.add((name, one.host))
        now = time.monotonic()
        if now - self._said.get(name, 0.0) > _TOLD:
            self._said[name] = now
            left = sum(map(data.length, absent))
            self._emit(DataStepped(name, "receives data", data.total - left, data.total))
        return held.idle == self._number

    def _seal(self, host: Host) -> None:
        self._emit(DataStepped(host.name, "finishes", self._data.total, self._data.total))
        session = self._fleet.session(host.name)
        session.request(wire.DataSeal(digest=self._data.digest), timeout=_LIMIT)
        with self._lock:
            self._hosts.pop(host.name)

    def _drop(self) -> None:
        """End what still receives or serves; an agent that loses us does it by itself."""
        for name in self._hosts:
            session = self._fleet.sessions.get(name)
            if session is not None:
                with contextlib.suppress(Exception):
                    session.submit(wire.DataDrop(digest=self._data.digest))


def _forgetful(host: str, what: str, why: str) -> HostError:
    hint = "look at the disk of its `workdir`: `dmesg`, `df -h`"
    return HostError(host, what, kind="data", why=why, hint=hint)


def _absent(bits: str, pieces: int) -> set[int]:
    """The pieces whose bit is not set."""
    digits = f"{int(bits, 16):0{pieces}b}"[::-1]
    return {piece for piece, digit in enumerate(digits[:pieces]) if digit == "0"}
