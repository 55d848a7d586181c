"""The controller's disk is full: what does not fit waits on the nodes, which is said, and is made up for."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from orchestrator.model import Host
from tests.ssh.runs.desk import Desk, mounted, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a small disk needs root to mount")

LOUD = """
import os
line = "x" * 1023
for _ in range(3072):
    print(line)
print("the last line", flush=True)
"""


@pytest.fixture
def disk(desk: Desk) -> Iterator[Path]:
    """The state folder on a file system of its own, too small for 3 MB of each of two tasks."""
    with mounted(desk.state, "size=1m") as disk:
        yield disk
        desk.close()


def nodes_have_all(desk: Desk, run: str) -> None:
    def has_ended(host: Host, slug: str) -> bool:
        log = desk.node_log(host, run, slug)
        whole = log.exists() and b"the last line" in log.read_bytes()
        return whole and desk.node_state(host, run, slug) == "exited"

    until("both have ended", lambda: all(map(has_ended, desk.cluster.hosts, ("worker-0", "worker-1"))))


def test_with_room_again_the_rest_is_fetched_and_the_run_ends(desk: Desk, disk: Path) -> None:
    desk.script("loud.py", LOUD)
    viewer, run = desk.begin("--", "loud.py")
    viewer.shows("the logs wait on their hosts: No space left on device")
    nodes_have_all(desk, run)
    status = desk.start("status", run).ended()
    assert "exited" in status.stdout
    assert viewer.process.poll() is None
    assert not desk.named("HostLost", run)
    subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert "there is space again" in viewer.stderr
    assert len(desk.named("RunEnded", run)) == 1
    assert len(desk.named("RunAdopted", run)) == 0
    desk.logs_are_identical(run)


@pytest.mark.usefixtures("disk")
def test_a_stop_ends_the_run_whatever_waits(desk: Desk) -> None:
    """Its tasks were done before: it has succeeded."""
    desk.timings = {"catch_up": 0.5}
    desk.script("loud.py", LOUD)
    viewer, run = desk.begin("--", "loud.py")
    viewer.shows("the logs wait on their hosts")
    nodes_have_all(desk, run)
    stop = desk.start("stop", "--now", run).ended()
    assert "no answer" not in stop.stderr
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    ended = {event["task"]: event["code"] for event in desk.named("TaskExited", run)}
    assert ended == {"worker/0": 0, "worker/1": 0}
    assert [event["outcome"] for event in desk.named("RunEnded", run)] == ["succeeded"]
    assert "of its log are not here" in stop.stderr


def test_a_viewer_reports_a_disk_on_which_no_event_finds_room(desk: Desk, disk: Path) -> None:
    desk.script("long.py", "import time\nprint('up', flush=True)\ntime.sleep(3600)\n")
    run = desk.detached("--", "long.py")
    until("both live", lambda: len(desk.task_pids(run)) == 2)
    filled = subprocess.run(["dd", "if=/dev/zero", f"of={disk / 'rest'}"], check=False, capture_output=True)
    assert b"No space left" in filled.stderr
    viewer = desk.start("tail", run)
    viewer.shows("no space left on this machine: nothing new can be shown")
    (disk / "rest").unlink()
    desk.start("stop", "--now", run).ended()
    assert viewer.wait() == ExitStatus.INTERRUPTED
    desk.nothing_is_left(run)
