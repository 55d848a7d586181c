"""A stop ends the task, whichever of our processes is frozen, or has no descriptor left."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.node.base import procs
from orchestrator.node.task import state
from tests.node.harness import PROGRAMS, dead, guard_of, identities, supervisor_of, until
from tests.node.lab import Lab


def stopped(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: all(procs.status(pid) == "T" for pid in pids), what=f"{pids} stand still")


def starved(*pids: int) -> None:
    """It can open no file, and so write no state."""
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("break_it", "which", "kill"),
    [
        (stopped, "supervisor", False),
        (stopped, "supervisor", True),
        (stopped, "guard", True),
        (stopped, "supervisor guard", False),
        (stopped, "leader", False),
        (starved, "supervisor", True),
    ],
)
def test_a_stop_ends_the_task(lab: Lab, break_it: Callable[..., None], which: str, kill: bool) -> None:
    agent = lab.agent()
    leader = lab.start(agent, "sh", "-c", f'python3 "{PROGRAMS}/family.py" & wait')["pid"]
    family = identities(lab.folder, 5)
    pids = {"leader": leader, "supervisor": supervisor_of(leader), "guard": guard_of(leader)}
    break_it(*(pids[name] for name in which.split()))
    assert lab.stop(agent, kill=kill, grace=0.5) == {"asked": ["worker/0"]}

    def over() -> bool:
        (run,) = agent.request("states", run=lab.run)["runs"]
        return all(state.is_final(task["state"]) and not task["alive"] for task in run["tasks"])

    until(over, what="the task is over, and its host reports it")
    until(lambda: dead(family), what="nothing of it is alive")
    assert agent.request("sweep", run=lab.run)["alive"] == []
