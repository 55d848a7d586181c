"""Ctrl-C, SIGTERM, twice Ctrl-C, a killed keeper, a killed viewer: at every phase, and nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from orchestrator.rehearsal import Cluster
from tests.ssh.runs.desk import Desk, until
from tests.ssh.runs.phases import PHASES, Held, hold, traceback_free

BOUND = 40.0  # seconds; all of it is over much sooner, but on a machine that is busy with other things

ONCE, TWICE = [signal.SIGTERM], [signal.SIGINT, signal.SIGINT]


@pytest.fixture
def desk(cluster: Cluster, tmp_path: Path) -> Iterator[Desk]:
    with closing(Desk(cluster, tmp_path / "a user's $(folder)")) as made:
        yield made


@pytest.fixture
def held(desk: Desk, request: pytest.FixtureRequest) -> Iterator[Held]:
    with ExitStack() as stack:
        yield hold(desk, request.param, stack)


@pytest.mark.parametrize(
    ("held", "signals"),
    [(phase, TWICE if phase in {"stage", "launch"} else ONCE) for phase in PHASES],
    indirect=["held"],
    ids=PHASES,
)
def test_who_asks_for_the_end_gets_it(held: Held, signals: list[signal.Signals]) -> None:
    desk = held.desk
    viewer = desk.launch(*held.words, fast=held.fast)
    run = held.reached()
    for number in signals:
        viewer.signal(number)
    assert viewer.wait(BOUND) == ExitStatus.INTERRUPTED, viewer.stderr
    ended(desk, run, "stopped")


@pytest.mark.parametrize("held", ["stage", "follow"], indirect=True)
def test_a_killed_keeper_is_replaced_by_its_viewer(held: Held) -> None:
    """What had not begun is given up with one verdict; what was running goes on."""
    desk = held.desk
    viewer = desk.launch(*held.words, fast=held.fast)
    run = held.reached()
    os.kill(desk.keeper(run), signal.SIGKILL)
    until("another one took over", lambda: desk.named("RunAdopted", run))
    until("it ended, or goes on", lambda: desk.named("RunEnded", run) or goes_on(desk, run))
    if goes_on(desk, run):
        viewer.signal(signal.SIGINT)
        assert viewer.wait(BOUND) == ExitStatus.INTERRUPTED, viewer.stderr
        ended(desk, run, "stopped")
    else:
        assert viewer.wait(BOUND) == ExitStatus.RUN_FAILED, viewer.stderr
        assert "its keeper was gone before worker/" in viewer.stderr
        ended(desk, run, "cluster")


def goes_on(desk: Desk, run: str) -> bool:
    begun = [event["phase"] for event in desk.named("PhaseStarted", run)]
    return begun[-1] == "follow" and not desk.named("RunEnded", run)


@pytest.mark.parametrize("held", ["validate", "follow"], indirect=True)
def test_with_viewer_and_keeper_killed_status_shows_and_stop_ends(held: Held) -> None:
    desk = held.desk
    viewer = desk.launch(*held.words, fast=held.fast)
    run = held.reached()
    viewer.signal(signal.SIGKILL)
    viewer.wait()
    os.kill(desk.keeper(run), signal.SIGKILL)
    until("its agents are gone", lambda: not desk.agents())
    living = desk.task_pids(run)  # a question of preflight may still be dying with its agent
    status = desk.start("status", run)
    status.wait(BOUND)
    if living:
        assert "running" in status.stdout, status.stdout + status.stderr
    stop = desk.start("stop", run)
    assert stop.wait(BOUND) in (ExitStatus.OK, ExitStatus.CLUSTER), stop.stderr
    ended(desk, run, "stopped")


def test_tail_goes_on_with_a_stop_whose_keeper_was_killed(desk: Desk) -> None:
    with ExitStack() as stack:
        held = hold(desk, "follow", stack)
        viewer = desk.launch(*held.words)
        run = held.reached()
        viewer.signal(signal.SIGINT)
        until("the stop has begun", lambda: desk.named("StopRequested", run))
        viewer.signal(signal.SIGKILL)
        os.kill(desk.keeper(run), signal.SIGKILL)
        tail = desk.start("tail", run)
        assert tail.wait(BOUND) == ExitStatus.INTERRUPTED, tail.stderr
        ended(desk, run, "stopped")


def ended(desk: Desk, run: str, outcome: str) -> None:
    """One verdict, and nothing alive anywhere; who asks three times does not wait for it."""
    until("the run has ended", lambda: desk.named("RunEnded", run))
    (event,) = desk.named("RunEnded", run)
    assert event["outcome"] == outcome, event
    desk.hosts_are_quiet(run)
    traceback_free(desk, run)
