"""The keeper outlives viewers; when it is killed itself, the run goes on and another takes over."""

import signal

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk

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
    tail = desk.start("tail", run, "-n", "all").ended()
    assert tail.stdout.count("enough") == 2


def test_two_runs_at_once_on_the_same_hosts(desk: Desk) -> None:
    first = desk.launch(*counting(desk))
    first.shows("line 5")
    run = desk.run_id()
    second = desk.launch("--", "true").ended(ExitStatus.CLUSTER)
    assert run in second.stdout + second.stderr
    assert "@" in second.stdout + second.stderr
    third = desk.launch("--other-ports", "--", "sh", "-c", 'echo "$TF_CONFIG"').ended()
    assert f":{desk.cluster.hosts[0].task_port}" not in third.stdout
    let_it_end(desk)
    assert first.wait() == ExitStatus.OK, first.stderr
