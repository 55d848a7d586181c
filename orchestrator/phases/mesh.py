"""Have hosts listen on their task ports and connect to each other's, every pair both ways."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping, Sequence
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


def listen(fleet: Fleet, questions: Mapping[str, wire.Listen]) -> Answers[wire.Listening]:
    """Have every host listen; where another preflight is at a port, all let go and try again.

    Nothing is held while it waits, so that no two can wait for each other for ever.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        answers = fleet.ask(questions, hosts=list(questions))
        passing = any(busy.passes for reply in answers.good.values() for busy in reply.busy)
        if not passing or time.monotonic() > deadline:
            return answers
        fleet.ask(wire.Unlisten(), hosts=list(answers.good))
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
    extra: bool = False,
    large: int = LARGE,
) -> Meeting:
    """Have all hosts listen and connect to each other; `extra`: on a port of the kernel's choice, too."""
    nonce = secrets.token_hex(8)
    answers = listen(
        fleet,
        {
            host.name: wire.Listen(
                run=run, ports=ports[host.name], nonce=nonce, host=host.name, extra=extra, large=large
            )
            for host in hosts
        },
    )
    listening, bad = answers.good, dict(answers.bad)
    targets = [
        wire.ProbeTarget(host.name, host.address, port)
        for host in hosts
        if (reply := listening.get(host.name))
        for port in (*reply.listening, *([reply.extra] if reply.extra is not None else []))
    ]

    def connect(
        choice: Mapping[str, Sequence[wire.ProbeTarget]],
    ) -> dict[tuple[str, wire.ProbeTarget], wire.Probed]:
        questions = {
            name: wire.Probe(nonce=nonce, timeout=patience, targets=each, large=large)
            for name, each in choice.items()
            if name not in bad
        }
        replies = fleet.ask(questions, timeout=patience + _MARGIN, hosts=list(questions))
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
    if again:
        connections.update(connect(again))
    bad.update(fleet.ask(wire.Unlisten(), hosts=[name for name in listening if name not in bad]).bad)
    pairs: list[PairReported] = []
    others: list[PairReported] = []
    for (name, target), probed in connections.items():
        if target.port != listening[target.host].extra:
            pairs.append(_pair(name, target, probed))
        elif name != target.host:
            others.append(_pair(name, target, probed))
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
