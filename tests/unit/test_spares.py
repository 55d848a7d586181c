"""Spares that are looked at as if they had tasks."""

from __future__ import annotations

from orchestrator.events import CheckReported, Level
from orchestrator.phases.restart.seats import unfit, with_spares
from tests.unit import plans

CHECKS = [
    CheckReported("a", "disk", Level.FAIL, "full"),
    CheckReported("c", "tensorflow", Level.FAIL, "not installed"),
    CheckReported("c", "port", Level.FAIL, "2222 taken"),
    CheckReported("d", "clock", Level.WARN, "2 s ahead"),
]


def test_the_first_thing_that_is_wrong_with_a_spare_is_said() -> None:
    assert unfit(CHECKS, {"c", "d"}, made_later=False) == {"c": "tensorflow: not installed"}
    assert unfit(CHECKS, {"c", "d"}, made_later=True) == {"c": "port: 2222 taken"}


def test_a_spare_gets_a_task_of_its_own_to_be_looked_at() -> None:
    plan = plans.make(plans.host("a"), plans.host("b"), command=("true",))
    spare = plans.host("c", spare=True, task_port=2300)
    made = with_spares(plan, [spare])
    assert [(str(spec.id), spec.host, spec.port) for spec in made.tasks][-1] == ("worker/2", "c", 2300)
    assert [host.name for host in made.hosts] == ["a", "b", "c"]
    assert not any(host.spare for host in made.hosts)
