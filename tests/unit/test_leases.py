"""Ports that another run still holds for a moment: the hosts are asked again before a launch is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator import wire
from orchestrator.fleet import Answers
from orchestrator.model import Admission
from orchestrator.phases.connect import lease
from orchestrator.phases.context import PhaseFailed, Run, StopFlag

FREE = wire.Leased(conflicts=())
HELD = wire.Leased(conflicts=(wire.Conflict(run="r0", task="worker/0", owner="ada@home", port=2222),))


class Told:
    """Stands for the fleet of one host, which gives these answers; the last one again and again."""

    def __init__(self, *replies: wire.Leased) -> None:
        self.sessions: dict[str, object] = {}
        self.asked = 0
        self._replies = replies

    def ask(self, *_: object, **__: object) -> Answers[wire.Leased]:
        self.asked += 1
        return Answers({"gpu-1": self._replies[min(self.asked, len(self._replies)) - 1]}, {})


def a_run(fleet: Told, stop: StopFlag | None = None) -> Run:
    plan = SimpleNamespace(admission=Admission(), run="r1")
    bus = SimpleNamespace(emit=lambda _event: None)
    known: dict[str, Any] = {"fleet": fleet, "plan": plan, "bus": bus, "stop": stop or StopFlag()}
    return cast("Run", SimpleNamespace(id="r1", names=["gpu-1"], **known))


def test_a_run_that_has_just_ended_lets_go_in_a_moment() -> None:
    fleet = Told(HELD, HELD, FREE)
    lease(a_run(fleet))
    assert fleet.asked == 3


def test_one_that_goes_on_is_named() -> None:
    with pytest.raises(PhaseFailed, match="has task port 2222 taken by run r0"):
        lease(a_run(Told(HELD)))


def test_a_stop_is_not_kept_waiting() -> None:
    fleet, stop = Told(HELD), StopFlag()
    stop.ask(kill=False)
    with pytest.raises(PhaseFailed):
        lease(a_run(fleet, stop))
    assert fleet.asked == 1
