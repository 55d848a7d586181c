"""The keeper in simulated histories: invariants hold, seeds replay, and known bugs are found."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.events import HostReplaced
from tests.processes import called
from tests.sim.bugs import BUGS, injected
from tests.sim.faults import FAULTS
from tests.sim.world import play

ROOT = Path(__file__).parents[2]
SIMULATE = [sys.executable, "-m", "tests.sim"]

# Seeds that found a bug, and the bug. A change of the simulator changes the history of a seed.
FOUND = {
    257: "collect: a host that is lost while its output is fetched takes the known end of its task along",
    145: "stage: a keeper that was killed before the code was sent is followed by one that fetches all code",
    38: "launch: a host with two tasks that is lost between their starts has one start told twice",
    39509: "stop: a stop of a failed attempt arrives, after a silence, during the next attempt",
    10690: "launch: after one host refused and another was lost, a stream with dropped frames was used",
    432: "adopt: a keeper that was killed while it stopped a failed attempt is followed by one that stops",
    5624: "adopt: a keeper that was killed at a stop is followed by one that blames what failed of the stop",
    204837: "adopt: the same with a third keeper, which finds the tasks stopped",
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    return called([*SIMULATE, *arguments], env=environ, cwd=ROOT)


def test_three_hundred_histories_keep_every_invariant() -> None:
    done = simulate("--seeds", "300")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("seed", FOUND, ids=FOUND.get)
def test_histories_that_once_found_bugs_pass(seed: int) -> None:
    assert play(seed).problems == []


def test_a_seed_replays_exactly() -> None:
    """In another process, and after other histories."""
    seeds = range(40, 60)
    here = [play(seed).digest for seed in seeds]
    assert here == [play(seed).digest for seed in seeds]
    assert len(set(here)) == len(seeds)
    other = simulate("--seeds", "1", "--first", "40", "--events").stdout
    assert f"digest {here[0]}" in other


# Combinations that would take seconds each with real hosts, played at many moments.
TOGETHER = (
    ("stop", "task-fails"),
    ("stop", "cut"),
    ("stop-then-kill", "task-ignores-term"),
    ("stop", "task-exits-while-asked"),
    ("cut-before-reply", "agent-dies"),  # faults that fail no run
)


@pytest.mark.parametrize("faults", TOGETHER, ids=" and ".join)
def test_combined_faults_keep_every_invariant(faults: tuple[str, ...]) -> None:
    assert not [problem for seed in range(100) for problem in play(seed, faults).problems]


def test_spares_that_respond_replace_all_hosts() -> None:
    """If no spare responds, this machine's network may have failed, and the run waits."""
    replaced = {True: 0, False: 0}
    for seed in range(100):
        history = play(seed, ("outage",))
        assert history.problems == []
        replaced[any(isinstance(one[2].event, HostReplaced) for one in history.events)] += 1
    assert all(replaced.values())


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_injected_into_the_keeper_is_detected(bug: str) -> None:
    with injected(bug) as expected:
        assert any(expected in problem for seed in range(1000) for problem in play(seed).problems)


def test_there_are_thirty_fault_points() -> None:
    assert len(FAULTS) >= 30
