"""Several viewers, viewers elsewhere, and viewers whose folder, disk or output is not what it should be."""

import json

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk, Viewer, until
from tests.ssh.runs.test_keeper import COUNTING, let_it_end


def counting(desk: Desk, *words: str) -> Viewer:
    desk.script("t.py", COUNTING)
    desk.write_hosts(desk.cluster.hosts, job="[job]\ngrace = 1")
    viewer = desk.launch(*words, "--", "t.py", str(desk.folder / "enough"))
    until("both run", lambda: len(desk.task_pids(desk.run_id())) == 2)
    return viewer


def test_a_run_that_is_kept_elsewhere_is_shown_and_stopped_and_not_taken_over(desk: Desk) -> None:
    launch = counting(desk)
    desk.timings = {"handover": 0.5}
    run, keeper = desk.run_id(), desk.keeper()
    with desk.elsewhere():
        tail = desk.start("tail", run, "--hosts", str(desk.hosts)).ended(ExitStatus.CLUSTER)
        assert f"pid {keeper}, as " in tail.stderr
        assert tail.stderr.count("error:") == 1, tail.stderr
        assert not desk.named("RunEnded", run)
        status = desk.start("status", run, "--hosts", str(desk.hosts)).ended()
        assert f"run {run}: running, kept by " in status.stdout
        assert f"pid {keeper}" in status.stdout
        desk.start("stop", run, "--hosts", str(desk.hosts)).ended()
        assert desk.named("RunEnded", run)[0]["outcome"] == "stopped"
    assert launch.wait() == ExitStatus.INTERRUPTED, launch.stderr
    (ended,) = desk.named("RunEnded", run)
    assert ended["outcome"] == "stopped"
    desk.nothing_is_left(run)
    desk.logs_are_identical(run)
    desk.is_traceback_free(run)


def test_stop_twice_and_stop_of_what_is_over(desk: Desk) -> None:
    launch = counting(desk)
    run = desk.run_id()
    stops = [desk.start("stop", run), desk.start("stop", "--now")]
    assert [stop.wait() for stop in stops] == [ExitStatus.OK, ExitStatus.OK]
    assert launch.wait() == ExitStatus.INTERRUPTED
    again = desk.start("stop", run).ended()
    gone = desk.cluster.ssh_config.rename(desk.folder / "gone")
    status = desk.start("status", run).ended()  # what was seen to its end needs no machine
    assert "unknown" not in status.stdout
    gone.rename(desk.cluster.ssh_config)
    assert "has already ended" in again.stderr
    told = desk.start("stop", run, "--json").ended()
    assert json.loads(told.stdout) == desk.named("RunEnded", run)[-1]
    assert len(desk.named("RunEnded", run)) == 1


def test_a_reader_that_has_seen_enough(desk: Desk) -> None:
    desk.script("t.py", COUNTING)
    viewer = desk.launch("--", "t.py", str(desk.folder / "enough"), shell='"$@" | head -1').ended()
    run = desk.run_id()
    assert len(viewer.stdout.splitlines()) == 1
    assert f"run {run} continues" in viewer.stderr
    assert "a bug in orchestrate" not in viewer.stderr
    until("both run", lambda: len(desk.task_pids(run)) == 2)
    let_it_end(desk)
    desk.start("tail", run).ended()


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_reader_that_is_gone_while_nothing_is_printed(desk: Desk, words: tuple[str, ...]) -> None:
    desk.script("t.py", "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    desk.launch(*words, "--", "t.py", shell='"$@" | grep -m 2 ready').ended()
    run = desk.run_id()
    assert len(desk.task_pids(run)) == 2
    desk.start("stop", "--now", run).ended()
