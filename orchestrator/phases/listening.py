"""Listening on the hosts' task ports, one preflight at a time: of two at once, one waits for the other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

from orchestrator import wire
from orchestrator.fleet import Answers, Fleet

PATIENCE = 45.0  # seconds; a preflight of hosts that do not answer takes half of it
_PAUSE = (0.1, 0.6)  # seconds, chosen each time: two that wait for each other must not do so in step


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
    told = False
    while True:
        answers = fleet.ask(questions, hosts=list(questions))
        others = {name: reply.waits_for for name, reply in answers.good.items() if reply.waits_for}
        if not others or time.monotonic() > deadline:
            return answers
        fleet.ask(wire.Unlisten(), hosts=list(answers.good))
        if not told:
            on_wait(others)
            told = True
        time.sleep(random.uniform(*_PAUSE))  # noqa: S311 - nobody is to be kept from guessing it
