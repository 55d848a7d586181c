"""Several viewers, viewers elsewhere, and viewers whose folder, disk or output is not what it should be."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk, Viewer, mounted, until
from tests.ssh.runs.phases import traceback_free

# Counts until a file says that it is enough; in the end says how far it came.
COUNTING = """
import os, sys, time
n = 0
while not os.path.exists(sys.argv[1]):
    n += 1
    print("line", n, flush=True)
    time.sleep(0.02)
print("enough", flush=True)
"""


def counting(desk: Desk, *words: str) -> Viewer:
    desk.script("t.py", COUNTING)
    desk.write_hosts(desk.cluster.hosts, job="[job]\ngrace = 1")
    viewer = desk.launch(*words, "--", "t.py", str(desk.folder / "enough"))
    until("both run", lambda: len(desk.task_pids(desk.run_id())) == 2)
    return viewer


def let_it_end(desk: Desk) -> None:
    (desk.folder / "enough").touch()


# --- more than one ---


def test_two_viewers_replace_a_killed_keeper_once(desk: Desk) -> None:
    launch = counting(desk)
    tail = desk.start("tail")
    tail.shows("line 5")
    run = desk.run_id()
    os.kill(desk.keeper(run), signal.SIGKILL)
    until("it was replaced", lambda: desk.named("RunAdopted", run))
    let_it_end(desk)
    assert (launch.wait(), tail.wait()) == (ExitStatus.OK, ExitStatus.OK)
    assert len(desk.named("RunAdopted", run)) == 1
    desk.logs_are_identical(run)


def test_a_run_that_is_kept_elsewhere_is_shown_and_stopped_and_not_taken_over(desk: Desk) -> None:
    launch = counting(desk)
    run, keeper = desk.run_id(), desk.keeper()
    with desk.elsewhere():
        tail = desk.start("tail", run, "--hosts", str(desk.hosts))
        assert tail.wait() == ExitStatus.CLUSTER, tail.stdout + tail.stderr
        assert f"pid {keeper} keeps it" in tail.stderr
        assert tail.stderr.count("error:") == 1, tail.stderr
        assert not desk.named("RunEnded", run)
        status = desk.start("status", run, "--hosts", str(desk.hosts))
        assert status.wait() == ExitStatus.OK, status.stderr
        assert f"run {run}: running, kept by " in status.stdout
        assert f"pid {keeper}" in status.stdout
        stop = desk.start("stop", run, "--hosts", str(desk.hosts))
        assert stop.wait() == ExitStatus.OK, stop.stderr
        assert desk.named("RunEnded", run)[0]["outcome"] == "stopped"
    assert launch.wait() == ExitStatus.INTERRUPTED, launch.stderr
    (ended,) = desk.named("RunEnded", run)
    assert ended["outcome"] == "stopped"
    desk.nothing_is_left(run)
    desk.logs_are_identical(run)
    traceback_free(desk, run)


# --- stop ---


def test_stop_twice_and_stop_of_what_is_over(desk: Desk) -> None:
    launch = counting(desk)
    run = desk.run_id()
    stops = [desk.start("stop", run), desk.start("stop", "--now")]
    assert [stop.wait() for stop in stops] == [ExitStatus.OK, ExitStatus.OK]
    assert launch.wait() == ExitStatus.INTERRUPTED
    again = desk.start("stop", run)
    assert again.wait() == ExitStatus.OK
    assert "is over already" in again.stderr
    told = desk.start("stop", run, "--json")
    assert told.wait() == ExitStatus.OK
    assert json.loads(told.stdout) == desk.named("RunEnded", run)[-1]
    assert len(desk.named("RunEnded", run)) == 1


def test_a_keeper_that_cannot_be_told_of_a_stop_is_replaced(desk: Desk) -> None:
    counting(desk, "--detach").wait()
    run = desk.run_id()
    (desk.run_folder(run) / "control").unlink()
    desk.patch = "import orchestrator.cli.stop as stop; stop._DEAF = 0.5"
    stop = desk.start("stop", run)
    assert stop.wait() == ExitStatus.OK, stop.stderr
    assert "it is killed, and the run is stopped from here" in stop.stderr
    desk.nothing_is_left(run)


# --- which run ---


def test_which_run_is_meant(desk: Desk) -> None:
    for _ in range(2):
        launch = desk.launch("--", "true")
        assert launch.wait() == ExitStatus.OK, launch.stderr
    first, second = sorted(path.name for path in desk._runs())
    root = desk.run_folder(first).parent
    start = first[:4]  # the year
    (root / f"{start}0101-000000-aaaa").mkdir()  # a launch that was killed in its first moment
    (root / "a file").touch()
    for verb in ("tail", "stop", "status"):
        unknown = desk.start(verb, "nosuch")
        assert unknown.wait() == ExitStatus.USAGE
        assert "there is no run 'nosuch'" in unknown.stderr
        several = desk.start(verb, start)
        assert several.wait() == ExitStatus.USAGE
        assert first in several.stderr
        assert second in several.stderr
    elsewhere = desk.folder / "another state"
    several = desk.start("stop", start, "--hosts", str(desk.hosts), XDG_STATE_HOME=str(elsewhere))
    assert several.wait() == ExitStatus.USAGE
    assert "2 runs match" in several.stderr
    assert not elsewhere.exists()


def test_of_keepers_on_two_other_machines_one_wins(desk: Desk) -> None:
    counting(desk, "--detach").wait()
    run = desk.run_id()
    os.kill(desk.keeper(run), signal.SIGKILL)
    tails = []
    here = desk.state
    for name in ("one", "another"):
        desk.state = desk.folder / name
        tails.append(desk.start("tail", run, "--hosts", str(desk.hosts)))
    until("one has given way", lambda: any(tail.process.poll() is not None for tail in tails))
    (loser,) = [tail for tail in tails if tail.process.poll() is not None]
    (winner,) = [tail for tail in tails if tail is not loser]
    assert loser.process.returncode == ExitStatus.CLUSTER, loser.stderr
    assert "keeps it" in loser.stderr
    let_it_end(desk)
    assert winner.wait() == ExitStatus.OK, winner.stderr
    desk.state = here
    desk.nothing_is_left(run)


# --- the controller's disk ---

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="a small or read-only disk needs root to mount")


@pytest.fixture
def disk(desk: Desk) -> Iterator[Path]:
    """The state folder on a file system of its own, of 1 MB."""
    with mounted(desk.state, "size=1m") as disk:
        yield disk
        desk.close()


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65_536, 4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    return filler


@root_only
def test_a_launch_needs_a_disk_that_can_be_written(desk: Desk, disk: Path) -> None:
    fill(disk)
    viewer = desk.launch("--", "true")
    assert viewer.wait() == ExitStatus.USAGE, viewer.stderr
    assert "cannot make the run's folder" in viewer.stderr
    assert "XDG_STATE_HOME" in viewer.stderr
    assert not list(desk._runs())


# --- where it is shown ---


def test_a_reader_that_has_seen_enough(desk: Desk) -> None:
    desk.script("t.py", COUNTING)
    viewer = desk.launch("--", "t.py", str(desk.folder / "enough"), shell='"$@" | head -1')
    assert viewer.wait() == ExitStatus.OK
    run = desk.run_id()
    assert len(viewer.stdout.splitlines()) == 1
    assert f"run {run} continues" in viewer.stderr
    assert "a bug in orchestrate" not in viewer.stderr
    until("both run", lambda: len(desk.task_pids(run)) == 2)
    let_it_end(desk)
    tail = desk.start("tail", run)
    assert tail.wait() == ExitStatus.OK


def _with(mark: bytes) -> list[int]:
    """The processes with an entry in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
