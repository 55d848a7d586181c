"""Killed agents, hanging hosts, and lost hosts."""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.errors import ExitStatus
from tests.processes import send
from tests.ssh.runs.desk import FAMILY, Desk, until


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Suspend processes while the block runs."""
    assert pids
    send(signal.SIGSTOP, pids)
    try:
        yield
    finally:
        send(signal.SIGCONT, pids)


# --- a host fails in a phase ---


def test_a_connection_lost_during_validation_is_restored(desk: Desk) -> None:
    enough = desk.folder / "enough"
    wait = f"while not os.path.exists({str(enough)!r}): time.sleep(0.05)\n"
    desk.script("wait.py", f"import os, time\nprint('up', flush=True)\n{wait}")
    desk.write_hosts(desk.cluster.hosts, job="[job]\nvalidate = 'python3 wait.py'\n")
    viewer, run = desk.begin("--skip-preflight", "--", "true", fast=False)
    log = desk.run_folder(run) / "logs" / "validate" / "worker-1.log"
    until("it validates", lambda: log.exists() and log.read_text() == "up\n")
    os.kill(desk.agents_of(1)[0], signal.SIGKILL)
    until("it is found again", lambda: desk.named("HostRecovered", run))
    enough.touch()
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert {event["host"] for event in desk.named("HostValidated", run)} == {
        host.name for host in desk.cluster.hosts
    }
    desk.hosts_are_quiet(run)


# --- a host fails during the stop ---


def test_with_all_hosts_lost_a_stop_ends_in_time_and_reports_what_is_unknown(desk: Desk) -> None:
    desk.timings = {"stop_unreachable": 0.5, "stop_impatient": 0.5, "last_try": 0.5}
    desk.write_hosts(desk.cluster.hosts, job="[job]\ngrace = 1")
    viewer, run = desk.begin("--", desk.script("t.py", FAMILY))
    until("both families are up", lambda: desk.families_are_up(run, 2))
    for server in desk.cluster.servers:
        desk.kill_sshd(server)
    until("the losses are reported", lambda: len(desk.named("HostLost", run)) == 2)
    viewer.signal(signal.SIGINT)
    assert viewer.wait() == ExitStatus.INTERRUPTED, viewer.stderr
    (ended,) = desk.named("RunEnded", run)
    assert ended["unproven"] == [host.name for host in desk.cluster.hosts]
    assert "tasks of the run may be alive there" in viewer.stderr
    assert f"orchestrate stop {run}" in viewer.stderr
    assert desk.task_pids(run)

    helpless = desk.start("stop", run).ended(ExitStatus.CLUSTER)
    assert "none of its hosts can be reached" in helpless.stderr

    for server in desk.cluster.servers:
        desk.start_sshd(server)
    desk.start("stop", run).ended()
    desk.nothing_is_left(run)


# --- no byte is lost ---

LOUD = r"""
import os, sys, time
out = sys.stdout.buffer
line = bytes(range(33, 120)) + b"\n"
n = 0
while n < 10_000 or not os.path.exists(sys.argv[1]):
    n += 1
    out.write(b"%d " % n + line * 3 + b"half\r\xff\x00")
    if n % 500 == 0:
        time.sleep(0.05)
"""


def test_no_output_is_lost_however_often_connections_are_cut(desk: Desk) -> None:
    dice = random.Random(20261121)
    run = desk.detached("--", desk.script("t.py", LOUD), str(desk.folder / "enough"))
    until("both run", lambda: len(desk.named("TaskStarted", run)) == 2)
    for cut in range(8):
        victims = until("both are followed", lambda: len(found := desk.served()) >= 4 and found)
        send(signal.SIGKILL, [dice.choice(victims)])
        if cut == 3:
            os.kill(desk.keeper(run), signal.SIGKILL)
            desk.start("tail", run, "-n", "0")
    (desk.folder / "enough").touch()
    until("the run has ended", lambda: desk.named("RunEnded", run))
    assert desk.named("RunEnded", run)[0]["outcome"] == "succeeded"
    desk.logs_are_identical(run)
    desk.is_traceback_free(run)
