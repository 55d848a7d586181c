"""Attempts after a failed one, on the same hosts, on spares, or on fewer hosts, and their limits."""

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.errors import ExitStatus
from tests.folders import mounted
from tests.ssh.runs.desk import Desk, Viewer, kill_all, until

FAST = {
    "pauses": [0.05],
    "host_return": 1.0,
    "silence": 3.0,
    "beat": 0.5,
    "stop_unreachable": 0.5,
    "last_try": 0.5,
}
LONG_PAUSE = {"pauses": [600.0]}

# Runs and reports 20 steps, resuming at the step in a file of its folder; argv selects how it fails.
TRAINER = """
import json, os, pathlib, sys, time
attempt = int(os.environ["ORCHESTRATE_ATTEMPT"])
me = json.loads(os.environ["TF_CONFIG"])["task"]
saved = pathlib.Path(f"saved-{me['type']}-{me['index']}")
step = int(saved.read_text()) if saved.exists() else 0
print("attempt", attempt, "begins at", step, flush=True)
exec(sys.argv[1])
while step < 20:
    step += 1
    saved.with_suffix(".new").write_text(str(step))  # who is ended here has the step before
    saved.with_suffix(".new").replace(saved)
    with open(os.environ["ORCHESTRATE_REPORT"], "a") as report:
        report.write(json.dumps({"kind": "progress", "step": step, "loss": 1.0}) + "\\n")
    fail(step)
print("trained", step, flush=True)
"""


def trainer(desk: Desk) -> str:
    return desk.script("t.py", TRAINER)


def log(desk: Desk, run: str, attempt: int | str, slug: str) -> str:
    return (desk.run_folder(run) / "logs" / str(attempt) / f"{slug}.log").read_text()


def ended(desk: Desk, run: str) -> dict[str, Any]:
    return desk.named("RunEnded", run)[-1]


def spares(desk: Desk, *numbers: int, job: str = "") -> None:
    """Write the inventory with some hosts marked as spares."""
    desk.write_hosts(
        [replace(host, spare=number in numbers) for number, host in enumerate(desk.cluster.hosts)], job
    )


def test_a_missing_working_folder_is_reported(desk: Desk) -> None:
    desk.timings = FAST
    lose = (
        "import shutil\nif attempt == 1 and me['index'] == 1: shutil.rmtree(pathlib.Path.cwd()); sys.exit(7)"
    )
    how = f"def fail(step): pass\n{lose}"
    viewer = desk.launch("--max-restarts", "1", "--", trainer(desk), how).ended()
    host = desk.cluster.hosts[1].name
    assert f"note: the run's folder is gone from {host}, with all that tasks wrote there" in viewer.stderr


def test_a_new_keeper_continues_the_restarts(desk: Desk) -> None:
    """Killed in the pause: the next keeper continues the count, and takes secrets from its environment."""
    desk.timings = LONG_PAUSE
    desk.write_hosts(desk.cluster.hosts, job='[job]\nsecrets = ["TOKEN"]\n')
    how = (
        "def fail(step):\n if attempt == 1: sys.exit(7)\nprint('token', len(os.environ['TOKEN']), flush=True)"
    )
    viewer, run = desk.begin("--max-restarts", "1", "--", trainer(desk), how, TOKEN="12345")
    viewer.shows("restart 1 of 1")
    viewer.signal(signal.SIGKILL)
    os.kill(desk.keeper(run), signal.SIGKILL)
    desk.timings = FAST
    desk.start("tail", run, TOKEN="12345").ended()
    assert "token 5" in log(desk, run, 2, "worker-0")
    assert ended(desk, run)["attempts"] == 2


# --- lost hosts ---

WAIT = """
def fail(step):
    if step == 5:
        print("half way", flush=True)
        while attempt == 1: time.sleep(0.05)
"""


def half_way(desk: Desk, run: str, tasks: int) -> None:
    logs = desk.run_folder(run) / "logs" / "1"

    def all_there() -> bool:
        return sum("half way" in path.read_text() for path in logs.glob("*.log")) == tasks

    until("every task is half way", all_there)


def power_off(desk: Desk, run: str, number: int) -> None:
    """Kill everything on a host of the first attempt at once, so that it no longer responds."""
    desk.kill_sshd(desk.cluster.servers[number])
    host = desk.cluster.hosts[number]
    kill_all([*desk.machinery_of(run, host), *desk.task_pids(run, f"worker/{number}")])


def half_way_with_a_spare(desk: Desk, restarts: str = "1") -> tuple[Viewer, str, list[str]]:
    desk.timings = FAST
    spares(desk, 3, job="[job]\nhost_timeout = 1\nfailure_grace = 0.1\n")
    viewer, run = desk.begin("--max-restarts", restarts, "--", trainer(desk), WAIT)
    half_way(desk, run, 3)
    return viewer, run, [host.name for host in desk.cluster.hosts]


def test_a_spare_replaces_a_lost_host(four: Desk) -> None:
    viewer, run, names = half_way_with_a_spare(four)
    known = _ports(json.loads((four.run_folder(run) / "plan.json").read_text()))
    power_off(four, run, 0)
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert f"{names[0]}: cannot be reached; {names[3]} takes its place" in viewer.stderr
    (failed,) = four.named("AttemptFailed", run)
    assert (failed["kind"], failed["cause_host"]) == ("host-lost", names[0])
    assert failed["cause"].startswith(f"{names[0]}: the host has not answered since ")
    assert four.named("AttemptPlanned", run)[0]["tasks"][0] == ["worker/0", names[3]]
    # The spare had no checkpoint; the others resumed.
    assert log(four, run, 2, "worker-0").startswith("attempt 2 begins at 0")
    assert log(four, run, 2, "worker-2").startswith("attempt 2 begins at 5")
    plan = json.loads((four.run_folder(run) / "plan.json").read_text())
    assert names[0] not in json.dumps(plan["cluster"])
    assert [host["name"] for host in plan["retired"]] == [names[0]]
    assert f"warning: {names[0]}: no answer" in viewer.stderr
    assert f"if only {names[0]} had saved a checkpoint, it is lost: set `backup`" in viewer.stderr
    # Whatever the lost host still runs, nothing listens on its ports.
    assert f"{names[0]} may still run old tasks: the new ones listen on port" in viewer.stderr
    assert _ports(plan).isdisjoint(known)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk that fails")
def test_a_spare_replaces_a_host_whose_disk_fails(four: Desk) -> None:
    """Its agent keeps responding."""
    viewer, run, names = half_way_with_a_spare(four, "3")
    with mounted(Path(four.cluster.hosts[1].state or ""), "ro"):
        assert viewer.wait() == ExitStatus.OK, viewer.stderr
        assert f"{names[1]}: cannot be reached; {names[3]} takes its place" in viewer.stderr
        assert "Read-only file system" in viewer.stderr
        assert not four.named("HostRecovered", run)


def _ports(plan: dict[str, Any]) -> set[int]:
    return {task["port"] for task in plan["tasks"]}


def test_a_spare_gets_the_code_as_it_was_at_the_launch(four: Desk) -> None:
    """A keeper that never had the code gets it from a remaining host."""
    four.timings = FAST
    spares(four, 3, job="[job]\nhost_timeout = 1\nfailure_grace = 0.1\n")
    how = WAIT + "\nprint('old code', pathlib.Path('data.txt').read_text(), flush=True)"
    how += "\npathlib.Path('last.pt').touch()"
    four.script("data.txt", "as it was")
    viewer, run = four.begin("--max-restarts", "1", "--", trainer(four), how)
    half_way(four, run, 3)
    four.script("data.txt", "edited since")
    viewer.signal(signal.SIGKILL)
    os.kill(four.keeper(run), signal.SIGKILL)
    tail = four.start("tail", run)
    tail.shows("now kept by")
    power_off(four, run, 1)
    assert tail.wait() == ExitStatus.OK, tail.stderr
    assert "old code as it was" in log(four, run, 2, "worker-1")
    first, *_, spare = (host.name for host in four.cluster.hosts)
    assert f"last.pt is on {first}, but not on {spare}: if each task loads it" in tail.stderr


def test_the_backup_of_the_first_task_reaches_every_host(four: Desk) -> None:
    desk = four
    desk.timings = FAST
    spares(desk, 3, job='[job]\nhost_timeout = 1\nfailure_grace = 0.1\nbackup = "backup"\n')
    how = """
backup = pathlib.Path("backup/step")
print("backup", backup.read_text() if backup.exists() else "none", flush=True)
def fail(step):
    if me["index"] == 0 and step == 5 * attempt:
        backup.parent.mkdir(exist_ok=True)
        backup.write_text(str(step))
    if step == 5 and attempt == 1:
        print("half way", flush=True)
        time.sleep(600)
    if attempt == 2 and step == 10:
        print("further", flush=True)
        time.sleep(600)
"""
    viewer, run = desk.begin("--max-restarts", "2", "--", trainer(desk), how)
    half_way(desk, run, 3)
    names = [host.name for host in desk.cluster.hosts]
    power_off(desk, run, 1)
    until(
        "all go on",
        lambda: (
            sum(b"further" in p.read_bytes() for p in (desk.run_folder(run) / "logs" / "2").glob("*.log"))
            == 3
        ),
    )
    backups = [log(desk, run, 2, f"worker-{n}").splitlines()[1] for n in range(3)]
    assert backups == ["backup 5"] * 3
    assert f"backup (1 B) was copied from {names[0]} to" in viewer.stderr
    # Now the host with the newest one is lost: the earlier copy is used, and that is reported.
    desk.start_sshd(desk.cluster.servers[1])
    until("the first host is back", lambda: "back after" in viewer.stderr)
    power_off(desk, run, 0)
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert [log(desk, run, 3, f"worker-{n}").splitlines()[1] for n in range(3)] == ["backup 5"] * 3
    assert f"the newest backup is lost with {names[0]}" in viewer.stderr
    assert ("worker/0", names[1]) in [tuple(p) for p in desk.named("AttemptPlanned", run)[-1]["tasks"]]


UNFIT = """
import os, sys
print("validating in", os.getcwd(), flush=True)
sys.exit("no TensorFlow here" if "-03/" in os.getcwd() else 0)
"""


def test_an_unusable_spare_is_skipped(four: Desk) -> None:
    """Only the spare fails: the next one is used in the same attempt."""
    four.timings = FAST
    four.script("v.py", UNFIT)
    job = '[job]\nhost_timeout = 1\nfailure_grace = 0.1\nvalidate = "python3 v.py"\n'
    spares(four, 2, 3, job=job)
    names = [host.name for host in four.cluster.hosts]
    viewer, run = four.begin("--skip-preflight", "--max-restarts", "1", "--", trainer(four), WAIT, fast=False)
    half_way(four, run, 2)
    power_off(four, run, 1)
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert f"{names[2]} cannot replace another host (validate: failed local" in viewer.stderr
    assert f"{names[1]}: cannot be reached; {names[3]} takes its place" in viewer.stderr
    assert ended(four, run)["attempts"] == 2
    assert log(four, run, 2, "worker-1").startswith("attempt 2 begins at 0")
    # Each validation has its own log.
    validated = [log(four, run, name, "worker-1") for name in ("validate", "validate-2", "validate-2-1")]
    assert [next(n for n in names if f"/{n}/" in text) for text in validated] == [names[n] for n in (1, 2, 3)]
    plan = json.loads((four.run_folder(run) / "plan.json").read_text())
    assert plan["unfit"] == [names[2]]
    assert not plan["preparing"]["stands_in"]


@pytest.mark.parametrize("phase", ["preflight", "validate"])
def test_a_host_lost_before_the_first_tasks_start_is_replaced(four: Desk, phase: str) -> None:
    """Before and after the code is sent: every host is prepared again, including the remaining ones."""
    four.timings = FAST
    names = [host.name for host in four.cluster.hosts]
    stays = four.program(
        "stays", f"#!/bin/sh\ntouch {shlex.quote(str(four.folder / 'there'))}\nexec sleep 600\n"
    )
    four.script("v.sh", f"case $PWD in *{names[1]}*) exec {shlex.quote(str(stays))};; esac; echo validated")
    job = '[job]\nhost_timeout = 1\nfailure_grace = 0.1\nvalidate = "sh v.sh"\n'
    hosts = [replace(host, spare=host.name == names[3]) for host in four.cluster.hosts]
    if phase == "preflight":
        hosts[1] = replace(hosts[1], python=str(stays))
    four.write_hosts(hosts, job)
    options = () if phase == "preflight" else ("--skip-preflight",)
    viewer, run = four.begin(
        *options,
        "--max-restarts",
        "1",
        "--",
        "python3",
        trainer(four),
        "fail = lambda step: None",
        fast=False,
    )
    until("it is in its phase", (four.folder / "there").exists)
    four.kill_sshd(four.cluster.servers[1])
    kill_all(four.machinery_of(run, four.cluster.hosts[1]))
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert f"warning: attempt 1 failed: {phase}: {names[1]} was lost" in viewer.stderr
    assert f"{names[1]}: cannot be reached; {names[3]} takes its place" in viewer.stderr
    assert {event["host"] for event in four.named("HostValidated", run)} == {names[0], names[2], names[3]}
    assert log(four, run, 2, "worker-1").splitlines()[0] == "attempt 2 begins at 0"


def test_no_attempt_starts_while_a_task_cannot_be_ended(desk: Desk) -> None:
    """Its lock stays held, as by a supervisor whose task is blocked in the kernel."""
    desk.timings = {**FAST, "release": 1.0}
    desk.write_hosts(desk.cluster.hosts, job="[job]\nfailure_grace = 0.1\n")
    viewer, run = desk.begin("--max-restarts", "1", "--", trainer(desk), WAIT)
    half_way(desk, run, 2)
    lock = desk.node_log(desk.cluster.hosts[1], run, "worker-1").with_name("lock")
    ours = desk.machinery_of(run, desk.cluster.hosts[1])
    with subprocess.Popen(["flock", "--no-fork", lock, "sleep", "600"]) as holder:
        try:
            until("it waits for the lock", lambda: _waits_for(holder.pid, lock))
            kill_all(ours)
            kill_all(desk.task_pids(run, "worker/0"))
            assert viewer.wait() == ExitStatus.RUN_FAILED, viewer.stderr
        finally:
            holder.kill()
    name = desk.cluster.hosts[1].name
    assert f"{name} has live tasks of the last attempt: worker/1" in viewer.stderr
    assert not [event for event in desk.named("TaskStarted", run) if event["attempt"] == 2]
    desk.start("stop", run).ended()
    desk.hosts_are_quiet(run)


def _waits_for(pid: int, lock: Path) -> bool:
    inode = str(lock.stat().st_ino)
    waiters = (line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line)
    return any(words[5] == str(pid) and words[6].endswith(f":{inode}") for words in waiters)
