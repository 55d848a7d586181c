"""What passes between the hosts: every pair both ways, then a second look at what went wrong."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.events import Closed, PairReported
from orchestrator.fleet import Fleet
from orchestrator.model import Host
from orchestrator.phases.listening import listen
from orchestrator.text import endpoint

R = TypeVar("R", bound=wire.Reply)

LARGE = 64 << 10  # bytes each way: many packets of any size, and too few for a slow line to matter
_SSH = 22
_BRIEF = 1.5  # seconds for a second look
_MARGIN = 30.0
_AT_ONCE = 4  # pairs whose bandwidth is measured at a time
_ALL_PAIRS = 6  # hosts; of more only the neighbours of the ring that an all-reduce makes are measured


class Ask(Protocol):
    """Puts questions to hosts that have not failed yet; what fails is noted."""

    def __call__(self, questions: Mapping[str, wire.Request[R]], timeout: float = ...) -> dict[str, R]: ...


@dataclasses.dataclass(frozen=True)
class Met:
    """What the looks have found."""

    listening: Mapping[str, wire.Listening]
    pairs: tuple[PairReported, ...]
    extra: tuple[PairReported, ...]  # on ports of the kernel's choice


def meet(
    fleet: Fleet,
    ask: Ask,
    hosts: Sequence[Host],
    ports: Mapping[str, Sequence[int]],
    *,
    run: str,
    patience: float,
    bandwidth: bool,
    extra: Sequence[str],
    on_wait: Callable[[Mapping[str, str]], None],
    on_failure: Callable[[Mapping[str, HostError]], None],
) -> Met:
    """Have all hosts listen and probe each other.

    `extra` names the hosts that are also to be reached on a port of the kernel's choice.
    """
    nonce = secrets.token_hex(8)
    questions = {
        host.name: wire.Listen(
            run=run, ports=ports[host.name], nonce=nonce, host=host.name, extra=host.name in extra
        )
        for host in hosts
    }
    answers = listen(fleet, questions, on_wait)
    on_failure(answers.bad)
    listening = answers.good
    look = _Look(ask, hosts, listening, nonce, patience)
    first = look.again(look.first())
    ports_of_kernel = {name: reply.extra for name, reply in listening.items()}
    others = [pair for pair in first if port_of(pair) == ports_of_kernel.get(pair.target)]
    pairs = [pair for pair in first if pair not in others]
    if bandwidth:
        pairs = look.bandwidth(pairs)
    ask({name: wire.Unlisten() for name in listening})
    return Met(listening, tuple(pairs), tuple(others))


class _Look:
    """The probes of one preflight."""

    def __init__(
        self,
        ask: Ask,
        hosts: Sequence[Host],
        listening: Mapping[str, wire.Listening],
        nonce: str,
        patience: float,
    ) -> None:
        self._ask = ask
        self._hosts = {host.name: host for host in hosts if host.name in listening}
        self._listening = listening
        self._nonce = nonce
        self._patience = patience

    def first(self) -> list[PairReported]:
        """Every pair, on every port that listens: a taken port has a check of its own."""
        targets = [
            wire.ProbeTarget(host.name, host.address, port)
            for host in self._hosts.values()
            for port in self._listening[host.name].listening
        ]
        extra = [
            wire.ProbeTarget(host.name, host.address, port)
            for host in self._hosts.values()
            if (port := self._listening[host.name].extra) is not None
        ]
        wanted = {name: [*targets, *(one for one in extra if one.host != name)] for name in self._hosts}
        return self._probe(wanted, self._patience, LARGE)

    def again(self, pairs: list[PairReported]) -> list[PairReported]:
        """Look again, with little load: a ping or a packet may be lost on a machine that is busy.

        Of a port from which nothing came, find out whether anything else of that host answers.
        """
        doubtful = {
            _key(pair)
            for pair in pairs
            if pair.tcp and (pair.icmp is False or pair.large_out is False or pair.large_back is False)
        }
        repeated = {
            _key(pair): pair for pair in self._probe(self._targets(pairs, doubtful), self._patience, LARGE)
        }
        silent = {_key(pair) for pair in pairs if not pair.tcp and Closed.silent(pair.why)}
        answers = {
            (pair.source, pair.target): pair.tcp or pair.why == Closed.REFUSED
            for pair in self._probe(
                self._targets(pairs, silent, ssh=True), min(_BRIEF, self._patience), 0, nonce=""
            )
        }
        found = []
        for pair in pairs:
            one = repeated.get(_key(pair), pair)
            if _key(pair) in silent:
                elsewhere = bool(answers.get((pair.source, pair.target))) or pair.icmp is True
                one = msgspec.structs.replace(one, elsewhere=elsewhere)
            found.append(one)
        return found

    def bandwidth(self, pairs: list[PairReported]) -> list[PairReported]:
        """How much goes from host to host, few pairs at a time and no host in two of them."""
        measured: dict[tuple[str, str], float] = {}
        for group in rounds(_ways(list(self._hosts))):
            questions = {
                source: wire.Bandwidth(
                    nonce=self._nonce,
                    target=wire.ProbeTarget(
                        target, self._hosts[target].address, self._listening[target].listening[0]
                    ),
                )
                for source, target in group
                if self._listening[target].listening
            }
            for source, reply in self._ask(questions, wire.Bandwidth.SECONDS + _MARGIN).items():
                if reply.rate is not None:
                    measured[source, dict(group)[source]] = reply.rate
        return [
            msgspec.structs.replace(pair, bandwidth=measured.pop((pair.source, pair.target), None))
            for pair in pairs
        ]

    def _targets(
        self, pairs: Sequence[PairReported], keys: set[tuple[str, str, str]], *, ssh: bool = False
    ) -> dict[str, list[wire.ProbeTarget]]:
        wanted: dict[str, list[wire.ProbeTarget]] = {}
        for pair in pairs:
            if _key(pair) in keys:
                host = self._hosts[pair.target]
                port = (host.port or _SSH) if ssh else port_of(pair)
                wanted.setdefault(pair.source, []).append(wire.ProbeTarget(pair.target, host.address, port))
        return wanted

    def _probe(
        self,
        wanted: Mapping[str, Sequence[wire.ProbeTarget]],
        patience: float,
        large: int,
        *,
        nonce: str | None = None,
    ) -> list[PairReported]:
        word = self._nonce if nonce is None else nonce
        questions = {
            name: wire.Probe(nonce=word, timeout=patience, targets=targets, large=large)
            for name, targets in wanted.items()
            if targets
        }
        replies = self._ask(questions, patience + _MARGIN) if questions else {}
        return [
            _pair(name, target, one)
            for name, reply in replies.items()
            for target, one in zip(questions[name].targets, reply.results, strict=True)
        ]


def _ways(hosts: list[str]) -> list[tuple[str, str]]:
    """The pairs, each in one direction or in both, whose bandwidth is measured."""
    if len(hosts) <= _ALL_PAIRS:
        return [(one, other) for one in hosts for other in hosts if one != other]
    return [(one, hosts[(number + 1) % len(hosts)]) for number, one in enumerate(hosts)]


def rounds(ways: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """The ways in groups of at most `_AT_ONCE`, no host twice in one group."""
    groups: list[list[tuple[str, str]]] = []
    for way in ways:
        fits = (
            group
            for group in groups
            if len(group) < _AT_ONCE and not {*way} & {name for other in group for name in other}
        )
        group = next(fits, None)
        if group is None:
            groups.append([way])
        else:
            group.append(way)
    return groups


def port_of(pair: PairReported) -> int:
    return int(pair.address.rpartition(":")[2])


def _key(pair: PairReported) -> tuple[str, str, str]:
    return pair.source, pair.target, pair.address


def _pair(source: str, target: wire.ProbeTarget, found: wire.Probed) -> PairReported:
    return PairReported(
        source=source,
        target=target.host,
        address=endpoint(target.address, target.port),
        tcp=found.tcp,
        tcp_ms=found.tcp_ms,
        icmp=found.icmp,
        icmp_ms=found.icmp_ms,
        why=found.why,
        resolved=found.resolved,
        large_out=found.large_out,
        large_back=found.large_back,
        large_ms=found.large_ms,
        packet=found.packet,
    )
