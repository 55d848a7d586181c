"""The keeper in simulated histories: invariants hold, seeds replay, and known bugs are found."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.events import HostReplaced, Outcome, RunEnded
from tests.processes import called
from tests.sim.bugs import BUGS, injected
from tests.sim.faults import FAULTS
from tests.sim.world import World, play

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


# Faults that would take seconds each with real hosts, and how many of their histories are played.
PLAYED = {
    ("stop", "task-fails"): 100,
    ("stop", "cut"): 100,
    ("stop-then-kill", "task-ignores-term"): 100,
    ("stop", "task-exits-while-asked"): 100,
    ("cut-before-reply", "agent-dies"): 100,  # faults that fail no run
    ("task-fails", "port-busy"): 40,
    ("task-fails", "stop-in-a-pause"): 40,
    ("task-fails", "host-returns-late"): 100,
    ("agent-lingers", "agent-lingers", "task-fails"): 200,
    ("stop", "controller-disk-full"): 100,
    ("connect-refused",): 100,
    ("task-hangs",): 40,
    ("reboot",): 40,
}


@pytest.mark.parametrize("faults", PLAYED, ids=" and ".join)
def test_faults_keep_every_invariant(faults: tuple[str, ...]) -> None:
    assert not [problem for seed in range(PLAYED[faults]) for problem in play(seed, faults).problems]


@pytest.mark.parametrize("has_spares", [True, False])
def test_hosts_that_are_all_lost_are_replaced_or_waited_for(has_spares: bool, tmp_path: Path) -> None:
    """A spare that responds shows that this machine's own network works."""
    played = 0
    for seed in range(200):
        plan = World(seed, tmp_path, ("outage",)).plan
        enough = len(plan.spares) >= len(plan.hosts) if has_spares else not plan.spares
        if plan.restarts.most and plan.restarts.host_timeout == 60 and enough:
            history, played = play(seed, ("outage",)), played + 1
            assert history.problems == []
            events = [one.event for _, _, one in history.events]
            replaced = {event.host for event in events if isinstance(event, HostReplaced)}
            assert replaced == ({host.name for host in plan.hosts} if has_spares else set())
            stopped = any(
                isinstance(event, RunEnded) and event.outcome is Outcome.STOPPED for event in events
            )
            assert stopped is not has_spares
    assert played > 5


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_injected_into_the_keeper_is_detected(bug: str) -> None:
    with injected(bug) as expected:
        assert any(expected in problem for seed in range(1000) for problem in play(seed).problems)


def test_there_are_thirty_fault_points() -> None:
    assert len(FAULTS) >= 30
