"""Without a keeper: what would never end by itself ends after the lifeline, healthy training goes on."""

import os
import signal
import time

from msgspec.structs import replace

from orchestrator.errors import ExitStatus
from orchestrator.model import Host, Role
from tests.ssh.runs.desk import Desk, until

LIFELINE = 3  # seconds
SLEEP = "import time; print('up', flush=True); time.sleep(600)\n"


def unkept(desk: Desk, hosts: list[Host], count: int) -> str:
    """A run with a short lifeline, whose keeper was killed."""
    desk.script("t.py", SLEEP)
    desk.write_hosts(hosts, job=f"[job]\ngrace = 1\nlifeline = {LIFELINE}")
    desk.launch("--detach", "--", "t.py").ended()
    run = desk.run_id()
    until("all run", lambda: len(desk.task_pids(run)) == count)
    until("all are followed", lambda: any(e["phase"] == "follow" for e in desk.named("PhaseStarted", run)))
    if Role.PS in {host.role for host in hosts}:
        followed = time.monotonic()
        until("a lifeline is over under a keeper", lambda: time.monotonic() > followed + LIFELINE + 1)
        assert len(desk.task_pids(run)) == count
    os.kill(desk.keeper(run), signal.SIGKILL)
    return run


def test_parameter_servers_and_their_workers_end_and_a_chief_goes_on(four: Desk) -> None:
    roles = (Role.CHIEF, Role.WORKER, Role.PS)
    hosts = [replace(host, role=role) for host, role in zip(four.cluster.hosts, roles, strict=False)]
    run = unkept(four, hosts, 3)
    until("the others have ended", lambda: not any(four.machinery_of(run, host) for host in hosts[1:]))
    assert len(four.task_pids(run)) == 1
    (chief,) = four.task_pids(run, "chief/0")
    status = four.start("status", run).ended()
    assert status.stdout.count("killed by SIGTERM") == 2
    os.kill(chief, signal.SIGTERM)
    four.start("tail", run).ended(ExitStatus.RUN_FAILED)
    four.nothing_is_left(run)
