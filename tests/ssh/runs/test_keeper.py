"""The keeper outlives viewers; when it is killed itself, the run goes on and another takes over."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk, Viewer, kill_all, until

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
    until("both run", lambda: len(desk.task_pids(run)) == 2)
    os.kill(desk.keeper(run), signal.SIGKILL)
    assert len(desk.task_pids(run)) == 2
    tail = desk.start("tail", run)
    until("it took over", lambda: desk.named("RunAdopted", run))
    let_it_end(desk)
    assert tail.wait() == ExitStatus.OK, tail.stderr
    desk.logs_are_identical(run)
    desk.nothing_is_left(run)


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


def test_stop_of_a_run_that_was_done_without_a_keeper_tells_of_its_success(desk: Desk) -> None:
    viewer = desk.launch(*counting(desk))
    viewer.shows("line 5")
    run = desk.run_id()
    kill_all([viewer.process.pid, desk.keeper(run)])
    let_it_end(desk)
    until("both have ended", lambda: not desk.task_pids(run) and not desk.machinery(run))
    stop = desk.start("stop", run)
    assert stop.wait() == ExitStatus.OK, stop.stderr
    (ended,) = desk.named("RunEnded", run)
    assert (ended["outcome"], ended["status"]) == ("succeeded", ExitStatus.OK)


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


# --- a keeper killed while it stops tasks for a reason of its own ---

# The first fails or is done; the others swallow TERM, but for the worker of a chief.
DEAF = """
import json, os, signal, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
if task["type"] != "worker" or sys.argv[3] == "worker":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[1] == "fail" and os.environ["ORCHESTRATE_ATTEMPT"] != "1":
    sys.exit()
print("up", flush=True)
if (task["type"], task["index"]) != (sys.argv[3], 0):
    time.sleep(600)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
sys.exit(7 if sys.argv[1] == "fail" else 0)
"""


# Silent from a moment on; one of two never ends.
HUSH = """
echo up
[ "$ORCHESTRATE_ATTEMPT" != 1 ] || while ! [ -e "$1" ]; do sleep 0.05; done
exec sleep 600
"""


def users_stops(desk: Desk, run: str) -> list[dict[str, Any]]:
    return [event for event in desk.named("StopRequested", run) if event["by"] == "user"]


def with_a_failure(desk: Desk, grace: float) -> tuple[Viewer, str]:
    """A run that may restart once; one task has just been told to fail, the other has to be killed for it."""
    desk.script("t.py", DEAF)
    desk.write_hosts(desk.cluster.hosts, job=f"[job]\nfailure_grace = {grace}\n")
    viewer = desk.launch("--max-restarts", "1", "--", "t.py", "fail", str(desk.folder / "enough"), "worker")
    until("both are up", lambda: viewer.stdout.count("up") == 2)
    let_it_end(desk)
    return viewer, desk.run_id()


def test_a_keeper_killed_in_the_stop_after_a_failure(desk: Desk) -> None:
    """Nobody asked for the end: the restarts go on, and the failure is still the cause."""
    desk.timings = {"pauses": [0.05]}
    viewer, run = with_a_failure(desk, grace=3)
    until("it stops the tasks", lambda: desk.named("StopRequested", run))
    os.kill(desk.keeper(run), signal.SIGKILL)
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert desk.named("RunAdopted", run)
    assert desk.named("AttemptFailed", run)[-1]["cause_task"] == "worker/0"
    assert users_stops(desk, run) == []


def test_a_stop_of_what_a_failed_run_left_does_not_change_how_it_ended(desk: Desk) -> None:
    desk.timings = {"host_return": 1.0, "silence": 3.0, "beat": 0.5}
    desk.write_hosts(desk.cluster.hosts, job="[job]\nhost_timeout = 1\nfailure_grace = 0.1\n")
    viewer = desk.launch("--max-restarts", "1", "--", "sh", "-c", HUSH, "sh", str(desk.folder / "enough"))
    run = desk.run_id()
    until("both are up", lambda: viewer.stdout.count("up") == 2)
    name = desk.cluster.hosts[1].name
    desk.kill_sshd(desk.cluster.servers[1])
    let_it_end(desk)
    assert viewer.wait() == ExitStatus.RUN_FAILED, viewer.stderr
    (first,) = desk.named("RunEnded", run)
    assert (first["kind"], first["unproven"]) == ("host-lost", [name])
    desk.start_sshd(desk.cluster.servers[1])
    stop = desk.start("stop", run)
    assert stop.wait() == ExitStatus.OK, stop.stderr
    last = desk.named("RunEnded", run)[-1]
    assert last == {**first, "at": last["at"], "unproven": [], "hint": ""}
    desk.nothing_is_left(run)


@pytest.mark.parametrize("told", [False], ids=["untold"])
def test_what_a_task_has_said_is_here_though_its_keeper_died_in_the_launch(desk: Desk, told: bool) -> None:
    """One of two tasks was started when the keeper was killed: nobody has followed it."""
    lost = "pass" if told else "run.bus.emit = lambda event: None"
    dies = (
        "import os, orchestrator.phases.launch as l\n"
        "def start(run, attempt, specs, cwd, real=l.start):\n"
        f"    {lost}\n"
        "    real(run, attempt, specs[:1], cwd)\n"
        "    os.kill(os.getpid(), 9)\n"
        "l.start = start\n"
    )
    desk.patch = f"exec({dies!r})"
    viewer = desk.launch("--", "sh", "-c", "echo said before the end; exec sleep 600")
    run = desk.run_id()
    host = desk.cluster.hosts[0]
    said = desk.node_log(host, run, "worker-0")
    until("the task has said it", lambda: said.exists() and said.read_bytes())
    viewer.signal(signal.SIGKILL)
    desk.patch = ""
    stop = desk.start("stop", run)
    assert stop.wait() == ExitStatus.OK, stop.stderr
    ours = desk.run_folder(run) / "logs" / "1" / "worker-0.log"
    assert ours.read_bytes() == said.read_bytes() == b"said before the end\n"
    assert [event["task"] for event in desk.named("TaskStarted", run)] == ["worker/0"]
    (exited,) = desk.named("TaskExited", run)
    assert (exited["task"], exited["stopped"], exited["lost"]) == ("worker/0", True, "")
    desk.hosts_are_quiet(run)
