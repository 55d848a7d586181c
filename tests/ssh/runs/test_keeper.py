"""The keeper outlives viewers; when it is killed itself, the run goes on and another takes over."""

from __future__ import annotations

import signal

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk, kill_all, until

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


def test_what_a_task_has_said_is_here_though_its_keeper_died_in_the_launch(desk: Desk) -> None:
    """One of two tasks was started when the keeper was killed: nobody has followed it."""
    dies = (
        "import os, orchestrator.phases.launch as l\n"
        "def start(run, attempt, specs, cwd, real=l.start):\n"
        "    run.emit = lambda event: None\n"
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
