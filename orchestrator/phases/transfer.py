"""Bringing data to hosts that lack it: it leaves this machine once, and goes on along a line of the hosts.

Each takes what it lacks from the one before it, as it comes there; the first takes it from here. A host to
which its neighbour gives nothing asks the one before that one, at last this machine. What has come stays when
it is interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.events import DataStepped
from orchestrator.fleet import Fleet
from orchestrator.model import Host
from orchestrator.phases.context import Emit, log
from orchestrator.sync import Contents, Sending, Throttle, one_time_key

_GLANCE = 0.25  # seconds between two looks at what a host has
_TOLD = 1.0  # seconds between two words about it
_STALL = 15.0  # seconds in which nothing comes of what could


@dataclass(frozen=True)
class TransferOptions:
    """How data is to be sent."""

    limit: float | None = None  # bytes per second that leave this machine
    thorough: bool = False  # every byte of what is there already is read
    run: str = "push"  # whose leases of ports are our own


@dataclass(frozen=True)
class Came:
    """Bytes that one host has received."""

    path: str
    sent: int  # bytes from here
    peers: int  # bytes from other hosts
    seconds: float


@dataclass
class _Part:
    """One host of a transfer."""

    host: Host
    sending: Sending
    path: str = ""
    port: int = 0  # where it gives pieces to peers
    lacked: int = 0  # bytes, at the beginning
    seconds: float = -1.0  # until it had all; below 0: it has not
    told_at: float = 0.0


class Transfer:
    """One data set on its way to the hosts that lack it."""

    def __init__(self, fleet: Fleet, data: Contents, options: TransferOptions, emit: Emit) -> None:
        self._fleet = fleet
        self._data = data
        self._run = options.run
        self._emit = emit
        self._key = one_time_key()
        self._throttle = Throttle(options.limit)
        self._began = time.monotonic()
        self._line: list[_Part] = []
        self._bad: dict[str, HostError] = {}

    def run(
        self, lacking: Sequence[Host], whole: Sequence[Host]
    ) -> tuple[dict[str, Came], dict[str, HostError]]:
        """Make `lacking` have it, with the help of those that are `whole`; what came, and what went wrong."""
        takers, givers = self._parts(lacking), self._parts(whole)
        try:
            rest = [part for part in self._each(takers, self._begin) if part.seconds < 0]
            if rest:
                helping = self._each(givers, lambda part: self._begin(part, serve=True))
                helping = [part for part in helping if not part.sending.lacks]
                self._line = [*helping, *sorted(rest, key=lambda part: len(part.sending.lacks))]
                self._each(self._each(rest, self._fill), self._seal)
        finally:
            for part in (*takers, *givers):
                if part.seconds < 0:
                    part.sending.drop()
        came = {
            part.host.name: Came(
                part.path, part.sending.sent, max(0, part.lacked - part.sending.sent), part.seconds
            )
            for part in takers
            if part.seconds >= 0
        }
        lost = {host.name for host in lacking} - set(came)
        return came, {name: error for name, error in self._bad.items() if name in lost}

    def _parts(self, hosts: Sequence[Host]) -> list[_Part]:
        parts = []
        for host in hosts:
            try:
                session = self._fleet.session(host.name)
            except HostError as error:
                self._bad[host.name] = error
                continue
            path = f"{host.workdir}/data/{self._data.digest}"
            parts.append(_Part(host, Sending(session, self._data, path)))
        return parts

    def _each(self, parts: Sequence[_Part], work: Callable[[_Part], None]) -> list[_Part]:
        """Work side by side; return those without an error: the others take no further part."""
        answers = self._fleet.each(parts, lambda part: part.host.name, work, pool=max(1, len(parts)))
        for name, error in answers.bad.items():
            log.warning("data: %s %s: %s", name, error.what, error.why)
            self._bad.setdefault(name, error)
        return [part for part in parts if part.host.name not in answers.bad]

    def _begin(self, part: _Part, *, serve: bool = False) -> None:
        """Have a host look at what it has."""
        host = part.host
        self._emit(DataStepped(host.name, "looks at what is there", 0, self._data.size))
        ports = [host.task_port + place for place in range(host.tasks)]
        begun = part.sending.begin(run=self._run, key=self._key, ports=ports, serve=serve)
        part.path, part.port = begun.path, begun.port
        part.lacked = sum(map(self._data.manifest.length, part.sending.lacks))
        if begun.present:
            part.seconds = time.monotonic() - self._began

    def _seal(self, part: _Part) -> None:
        self._emit(DataStepped(part.host.name, "finishes", self._data.size, self._data.size))
        part.sending.seal()
        part.seconds = time.monotonic() - self._began

    def _fill(self, part: _Part) -> None:
        """Give a host what it lacks: from those before it in the line, at last from here."""
        try:
            for giver in reversed(self._line[: self._line.index(part)]):
                self._take(part, giver)
            self._send(part)
        except BaseException:
            part.port = 0  # nobody waits for what it would have given
            raise

    def _take(self, part: _Part, giver: _Part) -> None:
        """Have a host take what it lacks from another one, until it has it or nothing comes any more."""
        lacks = part.sending.lacks
        if not lacks or not giver.port:
            return
        host = giver.host
        part.sending.have(wire.StoreSource(host.name, host.address, giver.port, sorted(lacks)))
        since = time.monotonic()
        while giver.port and not self._look(part) and part.sending.lacks:
            if part.sending.lacks != lacks or lacks <= giver.sending.lacks:
                lacks, since = part.sending.lacks, time.monotonic()
            elif time.monotonic() - since > _STALL:
                log.warning("data: nothing comes from %s to %s any more", host.name, part.host.name)
                return
            time.sleep(_GLANCE)

    def _send(self, part: _Part) -> None:
        """Send a host what it lacks; what was sent may still be in a pipe there."""
        part.sending.put(part.sending.lacks, lambda size: self._before(part, size))
        lacks, since = part.sending.lacks, time.monotonic()
        while lacks:
            self._look(part)
            if part.sending.lacks != lacks:
                lacks, since = part.sending.lacks, time.monotonic()
            elif time.monotonic() - since > _STALL:
                what = f"does not keep what it is sent ({len(lacks)} pieces)"
                raise _forgetful(part.host.name, what, "it took them and says that it does not have them")
            else:
                time.sleep(_GLANCE)

    def _before(self, part: _Part, size: int) -> None:
        if time.monotonic() - part.told_at > _TOLD:
            self._look(part)
        self._throttle.wait(size)

    def _look(self, part: _Part) -> bool:
        """Learn what a host has by now; return True when it takes nothing from another one any more."""
        name = part.host.name
        held = part.sending.have()
        absent = part.sending.absent(held.bits)
        # Without this a host that forgets and remembers would be sent to for ever, and all wait for it.
        if lost := len(absent - part.sending.lacks):
            what = f"has lost what it had ({lost} pieces)"
            raise _forgetful(name, what, "it said that it has them, and now that it has not")
        part.sending.lacks = absent
        if held.trouble:
            log.warning("data: %s gets nothing from the host before it: %s", name, held.trouble)
        if time.monotonic() - part.told_at > _TOLD:
            part.told_at = time.monotonic()
            left = sum(map(self._data.manifest.length, absent))
            self._emit(DataStepped(name, "receives data", self._data.size - left, self._data.size))
        return held.idle


def _forgetful(host: str, what: str, why: str) -> HostError:
    hint = "look at the disk of its `workdir`: `dmesg`, `df -h`"
    return HostError(host, what, kind="data", why=why, hint=hint)
