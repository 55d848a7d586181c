"""The keeper outlives viewers; when it is killed itself, the run goes on and another takes over."""

from __future__ import annotations

import os
import signal

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk, until

# Counts until a file says that it is enough.
COUNTING = """
import os, sys, time
n = 0
while not os.path.exists(sys.argv[1]):
    n += 1
    print("line", n, flush=True)
    time.sleep(0.02)
print("enough", flush=True)
"""


def counting(desk: Desk) -> tuple[str, ...]:
    desk.script("t.py", COUNTING)
    return ("--", "t.py", str(desk.folder / "enough"))


def let_it_end(desk: Desk) -> None:
    (desk.folder / "enough").touch()


def test_a_killed_viewer_changes_nothing(desk: Desk) -> None:
    viewer = desk.launch(*counting(desk))
    viewer.shows("line 5")
    run = desk.run_id()
    viewer.signal(signal.SIGKILL)
    viewer.wait()
    let_it_end(desk)
    until("the run has ended", lambda: desk.named("RunEnded", run))
    assert desk.named("RunEnded")[0]["outcome"] == "succeeded"
    desk.logs_are_identical(run)


def test_a_closed_terminal_changes_nothing(desk: Desk) -> None:
    viewer = desk.launch(*counting(desk))
    viewer.shows("line 5")
    run = desk.run_id()
    viewer.signal(signal.SIGHUP)
    viewer.wait()
    let_it_end(desk)
    tail = desk.start("tail", run, "-n", "all")
    assert tail.wait() == ExitStatus.OK
    assert tail.stdout.count("enough") == 2


def test_tail_takes_over_from_a_killed_keeper(desk: Desk) -> None:
    viewer = desk.launch("--detach", *counting(desk))
    assert viewer.wait() == ExitStatus.OK
    run = desk.run_id()
    assert viewer.stdout.strip() == run
    until("lines arrive", (desk.run_folder() / "logs/1/worker-0.log").exists)
    os.kill(desk.keeper(run), signal.SIGKILL)
    assert len(desk.task_pids(run)) == 2
    tail = desk.start("tail", run)
    until("it took over", lambda: desk.named("RunAdopted", run))
    let_it_end(desk)
    assert tail.wait() == ExitStatus.OK, tail.stderr
    desk.logs_are_identical(run)
    desk.nothing_is_left(run)


def test_the_viewer_replaces_a_killed_keeper(desk: Desk) -> None:
    viewer = desk.launch(*counting(desk))
    viewer.shows("line 5")
    run = desk.run_id()
    os.kill(desk.keeper(run), signal.SIGKILL)
    until("it was replaced", lambda: desk.named("RunAdopted", run))
    let_it_end(desk)
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    desk.logs_are_identical(run)


def test_tail_from_another_machine_needs_only_the_inventory(desk: Desk) -> None:
    desk.launch("--detach", *counting(desk)).wait()
    run = desk.run_id()
    until("both run", lambda: len(desk.task_pids(run)) == 2)
    os.kill(desk.keeper(run), signal.SIGKILL)
    desk.state = desk.folder / "another machine's state"
    tail = desk.start("tail", "--hosts", str(desk.hosts))
    until("it took over", lambda: desk.run_id() == run and desk.named("RunAdopted", run))
    let_it_end(desk)
    assert tail.wait() == ExitStatus.OK, tail.stderr
    assert tail.stdout.count("enough") == 2
    desk.logs_are_identical(run)


def test_stop_ends_a_run_without_a_keeper(desk: Desk) -> None:
    desk.write_hosts(desk.cluster.hosts, job="[job]\ngrace = 1")
    desk.launch("--detach", *counting(desk)).wait()
    run = desk.run_id()
    until("both run", lambda: len(desk.task_pids(run)) == 2)
    os.kill(desk.keeper(run), signal.SIGKILL)
    stop = desk.start("stop", run)
    assert stop.wait() == ExitStatus.OK, stop.stderr
    desk.nothing_is_left(run)
    assert desk.named("RunEnded", run)[0]["outcome"] == "stopped"


def test_stop_asks_the_keeper(desk: Desk) -> None:
    desk.write_hosts(desk.cluster.hosts, job="[job]\ngrace = 1")
    viewer = desk.launch(*counting(desk))
    viewer.shows("line 5")
    run = desk.run_id()
    stop = desk.start("stop")
    assert stop.wait() == ExitStatus.OK, stop.stderr
    assert viewer.wait() == ExitStatus.INTERRUPTED
    desk.nothing_is_left(run)


def test_a_detached_run_ends_as_a_whole_when_one_task_is_killed(desk: Desk) -> None:
    desk.launch("--detach", *counting(desk)).wait()
    run = desk.run_id()
    until("both run", lambda: len(desk.task_pids(run)) == 2)
    os.kill(desk.task_pids(run, "worker/1")[0], signal.SIGKILL)
    until("the run has ended", lambda: desk.named("RunEnded", run))
    assert desk.named("RunEnded", run)[0]["cause_task"] == "worker/1"
    desk.nothing_is_left(run)


def test_tail_shows_a_past_run_and_its_status(desk: Desk) -> None:
    desk.launch("--name", "first", "--", "sh", "-c", "echo one; exit 7").wait()
    tail = desk.start("tail", "first", "--task", "worker/1")
    assert tail.wait() == ExitStatus.RUN_FAILED
    assert "one" in tail.stdout


def test_status_and_runs(desk: Desk) -> None:
    viewer = desk.launch("--name", "counting", *counting(desk))
    viewer.shows("line 5")
    status = desk.start("status")
    assert status.wait() == ExitStatus.OK, status.stderr
    assert "running" in status.stdout
    runs = desk.start("runs")
    assert runs.wait() == ExitStatus.OK, runs.stderr
    assert desk.run_id() in runs.stdout
    assert "counting" in runs.stdout
    let_it_end(desk)
    assert viewer.wait() == ExitStatus.OK


def test_the_supervisors_end_is_told_as_lost(desk: Desk) -> None:
    desk.launch("--detach", *counting(desk)).wait()
    run = desk.run_id()
    until("both run", lambda: len(desk.task_pids(run)) == 2)
    os.kill(desk.keeper(run), signal.SIGKILL)
    for pid in desk.machinery(run):
        os.kill(pid, signal.SIGKILL)
    until("nothing is left", lambda: not desk.task_pids(run), 2.0)
    status = desk.start("status", run)
    assert status.wait() == ExitStatus.OK, status.stderr
    assert "lost" in status.stdout


def test_two_runs_at_once_on_the_same_hosts(desk: Desk) -> None:
    first = desk.launch(*counting(desk))
    first.shows("line 5")
    run = desk.run_id()
    second = desk.launch("--", "true")
    assert second.wait() == ExitStatus.CLUSTER
    assert run in second.stdout + second.stderr
    assert "@" in second.stdout + second.stderr
    third = desk.launch("--other-ports", "--", "sh", "-c", 'echo "$TF_CONFIG"')
    assert third.wait() == ExitStatus.OK, third.stderr
    assert f":{desk.cluster.hosts[0].task_port}" not in third.stdout
    let_it_end(desk)
    assert first.wait() == ExitStatus.OK, first.stderr
