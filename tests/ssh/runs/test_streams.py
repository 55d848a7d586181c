"""No byte is lost or duplicated, and nothing raw reaches the terminal."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from orchestrator.model import Host
from orchestrator.rehearsal import Cluster
from tests.folders import mounted
from tests.ssh.runs.desk import Desk, Viewer, until

# Every shape of output that has broken a launcher; 2,000 rounds of four lines.
LOUD = r"""
import os, subprocess, sys
out = sys.stdout.buffer
for n in range(int(sys.argv[1])):
    out.write(b"plain line %d of this task\n" % n)
    out.write(b"bar 1\rbar 2\rbar %d\n" % n)
    out.write(b"bad \xff\xfe utf-8 \xc3 and \x00 NUL\n")
    out.write(b"\x1b[2J\x1b]0;title\x07[bold]markup[/foo] :warning: \x1b[31mred\x1b[0m\n")
out.write(b"x" * 1_000_000 + b"\n")
out.write("\u2028 \x85 \x0c one line\n".encode())
out.flush()
subprocess.run("echo to stderr > /dev/stderr; echo teed | tee /dev/stderr", shell=True, check=True)
open("/dev/stdout", "w").write("reopened\n")
print("no newline at the end", end="")
"""


def test_many_lines_of_every_kind_from_four_tasks_arrive(four: Desk) -> None:
    viewer = four.launch("--", four.script("t.py", LOUD), "2000").ended(limit=120)
    run = four.run_id()
    four.logs_are_identical(run)
    log = (four.run_folder() / "logs/1/worker-3.log").read_bytes()
    assert log.count(b"\n") == 8_000 + 6
    assert b"\x00" in log
    assert b"\xff\xfe" in log
    shown = viewer.out.read_bytes()
    assert shown.count(b"plain line 1999 of this task") == 4
    assert shown.count(b"bar 1999\n") == 4
    assert b"bar 1\r" not in shown
    assert shown.count(b"[bold]markup[/foo] :warning: ") == 8_000
    for raw in (b"\x1b", b"\x00", b"\x07", b"\r"):
        assert raw not in shown
    assert b"no newline at the end\n" in shown


def test_json_output_is_nothing_but_json(desk: Desk) -> None:
    import json

    viewer = desk.launch("--json", "--", "sh", "-c", "echo one; echo '{not json'").ended()
    events = [json.loads(line) for line in viewer.stdout.splitlines()]
    assert [e["text"] for e in events if e["event"] == "LogLine"].count("{not json") == 2
    names = [e["event"] for e in events]
    assert names[0] == "RunPlanned"
    assert names[-1] == "RunEnded"
    assert names.index("TaskExited") > names.index("LogLine")


def test_a_full_disk_on_a_node_does_not_end_the_training(desk: Desk) -> None:
    with mounted(Path(desk.cluster.hosts[1].state or ""), "size=1m,mode=700"):
        desk.script(
            "t.py",
            "import os, sys\n"
            "line = 'y' * 99\n"
            "for n in range(40_000): print(line)\n"
            "print('trained to the end')\n"
            "open(sys.argv[1] + os.environ['TF_CONFIG'][-2], 'w').write('done')\n",
        )
        desk.launch("--", "t.py", str(desk.folder / "done-")).ended()
        assert len(list(desk.folder.glob("done-*"))) == 1
        gaps = desk.named("LogGap")
        assert gaps
        assert all(gap["task"] == "worker/1" and gap["count"] > 0 for gap in gaps)


def test_a_stop_does_not_wait_for_a_flood_of_output(desk: Desk) -> None:
    desk.timings = {"catch_up": 0.5}
    viewer, run = desk.begin("--", "yes", "a line of a flood that nobody will ever read")
    log = desk.run_folder(run) / "logs" / "1" / "worker-0.log"
    until("much has come", lambda: log.exists() and log.stat().st_size > 1 << 22)
    viewer.signal(signal.SIGINT)
    until("the run is over", lambda: desk.named("RunEnded", run), 30.0)
    viewer.signal(signal.SIGKILL)  # the viewer's speed does not matter
    assert desk.named("RunEnded", run)[0]["outcome"] == "stopped"
    ends = desk.named("TaskExited", run)
    assert sorted((end["task"], end["lost"]) for end in ends) == [("worker/0", ""), ("worker/1", "")]
    gaps = {event["task"]: event["count"] for event in desk.named("LogGap", run)}
    for host, slug in zip(desk.cluster.hosts, ("worker-0", "worker-1"), strict=True):
        ours = (desk.run_folder(run) / "logs" / "1" / f"{slug}.log").stat().st_size
        theirs = desk.node_log(host, run, slug).stat().st_size
        assert ours + gaps.get(slug.replace("-", "/"), 0) == theirs
        os.truncate(desk.node_log(host, run, slug), 0)
    desk.hosts_are_quiet(run)


@pytest.mark.parametrize("count", [16, pytest.param(64, marks=pytest.mark.soak)])
def test_many_hosts_pass_through_all_of_launch(tmp_path: Path, count: int) -> None:
    with Cluster(count) as cluster, closing(Desk(cluster, tmp_path)) as desk:
        viewer = desk.launch("--no-validate", "--", "hostname", fast=False).ended(limit=120)
        lines = [line for line in viewer.stdout.splitlines() if line.endswith(f"| {socket.gethostname()}")]
        assert len(lines) == count
        reach = [check["level"] for check in desk.named("CheckReported") if check["check"] == "reach"]
        assert reach == ["ok"] * count
        pairs = desk.named("PairReported")  # all of few hosts; of many, only those with problems
        assert len(pairs) == (count**2 if count < 64 else 0)
        desk.logs_are_identical(desk.run_id())
        desk.nothing_is_left(desk.run_id())


# --- This machine's disk is full: the rest waits on the nodes, is reported, and is fetched later ---

LARGE = """
import os
line = "x" * 1023
for _ in range(3072):
    print(line)
print("the last line", flush=True)
"""


@pytest.fixture
def disk(desk: Desk) -> Iterator[Path]:
    """Put the state folder on a separate file system, too small for 3 MB from each of two tasks."""
    with mounted(desk.state, "size=1m") as disk:
        yield disk
        desk.close()


def full(desk: Desk) -> tuple[Viewer, str]:
    """A run whose logs do not fit here, but are complete on their hosts."""
    viewer, run = desk.begin("--", desk.script("loud.py", LARGE))
    viewer.shows("the logs wait on their hosts: No space left on device")

    def has_ended(host: Host, slug: str) -> bool:
        log = desk.node_log(host, run, slug)
        whole = log.exists() and b"the last line" in log.read_bytes()
        return whole and desk.node_state(host, run, slug) == "exited"

    until("both have ended", lambda: all(map(has_ended, desk.cluster.hosts, ("worker-0", "worker-1"))))
    return viewer, run


def test_once_there_is_space_the_rest_is_fetched_and_the_run_ends(desk: Desk, disk: Path) -> None:
    viewer, run = full(desk)
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


def test_a_viewer_reports_a_disk_too_full_for_events(desk: Desk, disk: Path) -> None:
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
