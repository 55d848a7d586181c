"""SIGTERM, a killed keeper, a killed viewer: at phases with processes of their own, and nothing is left.

tests/sim plays the same, and Ctrl-C twice, at every moment of the phases between them.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from orchestrator.rehearsal import Cluster
from tests.ssh.runs.desk import HOSTILE, Desk, until
from tests.ssh.runs.phases import PHASES, Held, hold, traceback_free

BOUND = 40.0  # seconds; all of it is over much sooner, but on a machine that is busy with other things


@pytest.fixture
def desk(cluster: Cluster, tmp_path: Path) -> Iterator[Desk]:
    with closing(Desk(cluster, tmp_path / HOSTILE)) as made:
        yield made


@pytest.fixture
def held(desk: Desk, request: pytest.FixtureRequest) -> Iterator[Held]:
    with ExitStack() as stack:
        yield hold(desk, request.param, stack)


@pytest.mark.parametrize("held", PHASES, indirect=True)
def test_who_asks_for_the_end_gets_it(held: Held) -> None:
    desk = held.desk
    viewer = desk.launch(*held.words, fast=held.fast)
    run = held.reached()
    viewer.signal(signal.SIGTERM)
    assert viewer.wait(BOUND) == ExitStatus.INTERRUPTED, viewer.stderr
    ended(desk, run, "stopped")


@pytest.mark.parametrize("held", ["follow"], indirect=True)
def test_a_killed_keeper_is_replaced_by_its_viewer(held: Held) -> None:
    desk = held.desk
    viewer = desk.launch(*held.words, fast=held.fast)
    run = held.reached()
    os.kill(desk.keeper(run), signal.SIGKILL)
    until("another one took over", lambda: desk.named("RunAdopted", run))
    until("it goes on", lambda: desk.named("PhaseStarted", run)[-1]["phase"] == "follow")
    viewer.signal(signal.SIGINT)
    assert viewer.wait(BOUND) == ExitStatus.INTERRUPTED, viewer.stderr
    ended(desk, run, "stopped")


@pytest.mark.parametrize("held", ["validate"], indirect=True)
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


def ended(desk: Desk, run: str, outcome: str) -> None:
    """One verdict, and nothing alive anywhere; who asks three times does not wait for it."""
    until("the run has ended", lambda: desk.named("RunEnded", run))
    (event,) = desk.named("RunEnded", run)
    assert event["outcome"] == outcome, event
    desk.hosts_are_quiet(run)
    traceback_free(desk, run)
