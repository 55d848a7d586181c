"""Have hosts listen on their task ports and connect to each other's, every pair both ways."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.events import PairReported
from orchestrator.fleet import Answers, Fleet
from orchestrator.model import Host
from orchestrator.text import endpoint

PATIENCE = 45.0  # seconds; a preflight of hosts that do not answer takes half of it
LARGE = 64 << 10  # bytes: many packets of any size, and too few for a slow line to matter
_PAUSE = (0.1, 0.6)  # seconds, chosen each time: two that wait for each other must not do so in step
_MARGIN = 30.0


def listen(
    fleet: Fleet,
    questions: Mapping[str, wire.Listen],
    on_wait: Callable[[Mapping[str, str]], None] = lambda _: None,
    patience: float | None = None,
) -> Answers[wire.Listening]:
    """Have every host listen, or none: where another preflight is at a port, all let go and try again.

    Nothing is held while it waits, so that no two can wait for each other for ever. `on_wait` is told, once,
    at which hosts whose preflight is. After `patience` seconds the answers say `waits_for`.
    """
    deadline = time.monotonic() + (PATIENCE if patience is None else patience)
    waits = False
    while True:
        answers = fleet.ask(questions, hosts=list(questions))
        others = {name: reply.waits_for for name, reply in answers.good.items() if reply.waits_for}
        if not others or time.monotonic() > deadline:
            return answers
        fleet.ask(wire.Unlisten(), hosts=list(answers.good))
        if not waits:
            on_wait(others)
        waits = True
        time.sleep(random.uniform(*_PAUSE))  # noqa: S311 - nobody is to be kept from guessing it


@dataclass(frozen=True)
class Meeting:
    """Results of all connections."""

    listening: Mapping[str, wire.Listening]
    pairs: tuple[PairReported, ...]
    extra: tuple[PairReported, ...]  # on ports of the kernel's choice
    bad: Mapping[str, HostError]  # hosts that could not answer


def meet(
    fleet: Fleet,
    hosts: Sequence[Host],
    ports: Mapping[str, Sequence[int]],
    *,
    run: str,
    patience: float,
    extra: bool,
    on_wait: Callable[[Mapping[str, str]], None],
) -> Meeting:
    """Have all hosts listen and connect to each other; `extra`: on a port of the kernel's choice, too."""
    nonce = secrets.token_hex(8)
    questions = {
        host.name: wire.Listen(run=run, ports=ports[host.name], nonce=nonce, host=host.name, extra=extra)
        for host in hosts
    }
    answers = listen(fleet, questions, on_wait)
    listening = answers.good
    bad = dict(answers.bad)
    targets = []
    for host in hosts:
        if reply := listening.get(host.name):
            free = [*reply.listening, *([reply.extra] if reply.extra is not None else [])]
            targets += [wire.ProbeTarget(host.name, host.address, port) for port in free]

    def connect(
        choice: Mapping[str, Sequence[wire.ProbeTarget]],
    ) -> dict[tuple[str, wire.ProbeTarget], wire.Probed]:
        questions = {
            name: wire.Probe(nonce=nonce, timeout=patience, targets=each, large=LARGE)
            for name, each in choice.items()
            if name not in bad
        }
        replies = (
            fleet.ask(questions, timeout=patience + _MARGIN, hosts=list(questions))
            if questions
            else Answers({}, {})
        )
        bad.update(replies.bad)
        return {
            (name, target): probed
            for name, reply in replies.good.items()
            for target, probed in zip(questions[name].targets, reply.results, strict=True)
        }

    connections = connect(dict.fromkeys(listening, targets))
    # Look again, with little load: packets may be lost on a machine that is busy.
    again: dict[str, list[wire.ProbeTarget]] = {}
    for (name, target), probed in connections.items():
        if probed.large is False:
            again.setdefault(name, []).append(target)
    connections.update(connect(again))
    bad.update(fleet.ask(wire.Unlisten(), hosts=[name for name in listening if name not in bad]).bad)
    pairs: list[PairReported] = []
    others: list[PairReported] = []
    for (name, target), probed in connections.items():
        pair = _pair(name, target, probed)
        if target.port != listening[target.host].extra:
            pairs.append(pair)
        elif name != target.host:
            others.append(pair)
    return Meeting(listening, tuple(pairs), tuple(others), bad)


def _pair(source: str, target: wire.ProbeTarget, probed: wire.Probed) -> PairReported:
    return PairReported(
        source=source,
        target=target.host,
        address=endpoint(target.address, target.port),
        tcp=probed.tcp,
        tcp_ms=probed.tcp_ms,
        icmp=probed.icmp,
        why=probed.why,
        resolved=probed.resolved,
        large=probed.large,
        large_ms=probed.large_ms,
        packet=probed.packet,
    )
