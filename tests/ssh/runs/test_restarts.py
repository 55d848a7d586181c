"""Attempts after a failed one: on the same hosts, on spares, on fewer; and what ends them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk, kill_all, until

FAST = {"pauses": [0.05], "host_return": 1.0, "silence": 3.0, "beat": 0.5, "stop_unreachable": 1.0}
LONG_PAUSE = {"pauses": [600.0]}

# Takes 20 steps, reports each, goes on where the file in its own folder says; argv decides how it fails.
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
    """The inventory, with some of its hosts marked."""
    desk.write_hosts(
        [replace(host, spare=number in numbers) for number, host in enumerate(desk.cluster.hosts)], job
    )


def test_a_failed_attempt_is_followed_by_another_that_goes_on(desk: Desk) -> None:
    desk.timings = FAST
    how = "def fail(step):\n if me['index'] == 1 and attempt < 3 and step == 5 * attempt: sys.exit(7)"
    viewer = desk.launch("--max-restarts", "2", "--", trainer(desk), how)
    run = desk.run_id()
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert "attempt 1 failed: worker/1 on" in viewer.stderr
    assert "restart 2 of 2" in viewer.stderr
    assert f"run {run} succeeded after" in viewer.stderr
    assert "in attempt 3" in viewer.stderr
    assert ended(desk, run)["attempts"] == 3
    assert [log(desk, run, n, "worker-1").splitlines()[0] for n in (1, 2, 3)] == [
        "attempt 1 begins at 0",
        "attempt 2 begins at 5",
        "attempt 3 begins at 10",
    ]
    failed = desk.named("AttemptFailed", run)
    assert [(one["attempt"], one["cause_task"]) for one in failed] == [(1, "worker/1"), (2, "worker/1")]
    desk.hosts_are_quiet(run)


def test_the_same_failure_at_the_same_place_ends_the_restarts(desk: Desk) -> None:
    desk.timings = FAST
    how = "def fail(step):\n if step == 3: raise ValueError(f'shape {os.getpid()}')\nif attempt > 1: step = 0"
    viewer = desk.launch("--max-restarts", "9", "--", trainer(desk), how)
    assert viewer.wait() == ExitStatus.RUN_FAILED
    assert "not started again: the same failure came twice at the same place" in viewer.stderr
    assert ended(desk, desk.run_id())["attempts"] == 2


def test_a_user_can_stop_in_the_pause(desk: Desk) -> None:
    desk.timings = LONG_PAUSE
    viewer = desk.launch("--max-restarts", "2", "--", trainer(desk), "def fail(step): sys.exit(7)")
    run = desk.run_id()
    viewer.shows("restart 1 of 2 in 10 min")
    viewer.signal(signal.SIGINT)
    assert viewer.wait() == ExitStatus.INTERRUPTED, viewer.stderr
    assert not desk.named("AttemptPlanned", run)
    assert ended(desk, run)["attempts"] == 1
    desk.hosts_are_quiet(run)


def test_a_stop_while_a_failed_attempt_is_ended_announces_no_restart(desk: Desk) -> None:
    desk.write_hosts(desk.cluster.hosts, job="[job]\nfailure_grace = 600\n")
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT
    viewer = desk.launch("--max-restarts", "2", "--", trainer(desk), deaf)
    run = desk.run_id()
    half_way(desk, run, 2)
    (first,) = desk.task_pids(run, "worker/0")
    os.kill(first, signal.SIGKILL)
    viewer.shows("was killed by SIGKILL")
    assert desk.start("stop", "--now", run).wait() == ExitStatus.OK
    assert viewer.wait() == ExitStatus.RUN_FAILED, viewer.stderr
    assert "restart 1" not in viewer.stderr
    assert "not started again: a stop was asked for" in viewer.stderr
    last = ended(desk, run)
    assert (last["outcome"], last["cause_task"], last["attempts"]) == ("failed", "worker/0", 1)
    desk.hosts_are_quiet(run)


def test_a_new_keeper_goes_on_with_the_restarts(desk: Desk) -> None:
    """Killed in the pause: the next keeper counts on, and has the secrets of its own environment."""
    desk.timings = LONG_PAUSE
    desk.write_hosts(desk.cluster.hosts, job='[job]\nsecrets = ["TOKEN"]\n')
    how = (
        "def fail(step):\n if attempt == 1: sys.exit(7)\nprint('token', len(os.environ['TOKEN']), flush=True)"
    )
    viewer = desk.launch("--max-restarts", "1", "--", trainer(desk), how, TOKEN="12345")
    run = desk.run_id()
    viewer.shows("restart 1 of 1")
    viewer.signal(signal.SIGKILL)
    os.kill(desk.keeper(run), signal.SIGKILL)
    desk.timings = FAST
    tail = desk.start("tail", run, TOKEN="12345")
    assert tail.wait() == ExitStatus.OK, tail.stderr
    assert "token 5" in log(desk, run, 2, "worker-0")
    assert ended(desk, run)["attempts"] == 2


def test_a_keeper_without_the_secrets_says_so(desk: Desk) -> None:
    desk.timings = LONG_PAUSE
    desk.write_hosts(desk.cluster.hosts, job='[job]\nsecrets = ["TOKEN"]\n')
    viewer = desk.launch(
        "--max-restarts", "1", "--", trainer(desk), "def fail(step): sys.exit(7)", TOKEN="12345"
    )
    run = desk.run_id()
    viewer.shows("restart 1 of 1")
    viewer.signal(signal.SIGKILL)
    os.kill(desk.keeper(run), signal.SIGKILL)
    tail = desk.start("tail", run)
    assert tail.wait() == ExitStatus.RUN_FAILED
    assert "not started again: TOKEN is not set where it was taken over" in tail.stderr


# --- hosts that are lost ---

WAIT = """
def fail(step):
    if step == 5:
        print("half way", flush=True)
        while attempt == 1: time.sleep(0.05)
"""

FAILS_ONCE = "def fail(step):\n if attempt == 1 and step == 5: sys.exit(7)"


def half_way(desk: Desk, run: str, tasks: int) -> None:
    logs = desk.run_folder(run) / "logs" / "1"

    def all_there() -> bool:
        return sum("half way" in path.read_text() for path in logs.glob("*.log")) == tasks

    until("every task is half way", all_there)


def power_off(desk: Desk, run: str, number: int) -> None:
    """Everything of a host ends at once, and nothing answers there any more."""
    host = desk.cluster.hosts[number]
    mark = f"{host.state}/runs/".encode()
    desk.kill_sshd(desk.cluster.servers[number])
    kill_all([*desk.machinery_of(run, host), *_of_host(desk, run, mark)])


def _of_host(desk: Desk, run: str, mark: bytes) -> list[int]:
    found = []
    for pid in desk.task_pids(run):
        with contextlib.suppress(OSError):  # it has ended since
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


@pytest.mark.parametrize("chief_is_lost", [True])
def test_a_spare_takes_the_place_of_a_lost_host(four: Desk, chief_is_lost: bool) -> None:
    desk = four
    desk.timings = FAST
    spares(desk, 3, job="[job]\nhost_timeout = 1\nfailure_grace = 0.1\n")
    viewer = desk.launch("--max-restarts", "1", "--", trainer(desk), WAIT)
    run = desk.run_id()
    half_way(desk, run, 3)
    names = [host.name for host in desk.cluster.hosts]
    lost = 0 if chief_is_lost else 1
    known = _ports(json.loads((desk.run_folder(run) / "plan.json").read_text()))
    power_off(desk, run, lost)
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert f"{names[lost]}: cannot be reached; {names[3]} takes its place" in viewer.stderr
    assert (f"worker/{lost}", names[3]) in [
        tuple(pair) for pair in desk.named("AttemptPlanned", run)[0]["tasks"]
    ]
    # The spare had no checkpoint, the others went on.
    assert log(desk, run, 2, f"worker-{lost}").startswith("attempt 2 begins at 0")
    assert log(desk, run, 2, "worker-2").startswith("attempt 2 begins at 5")
    plan = json.loads((desk.run_folder(run) / "plan.json").read_text())
    assert f"{names[lost]}" not in json.dumps(plan["cluster"])
    assert [host["name"] for host in plan["retired"]] == [names[lost]]
    assert f"warning: {names[lost]}: no answer" in viewer.stderr
    # Whatever the lost host still runs, nothing listens where it would call.
    assert f"{names[lost]} may still run old tasks: the new ones listen on port" in viewer.stderr
    assert _ports(plan).isdisjoint(known)


def _ports(plan: dict[str, Any]) -> set[int]:
    return {task["port"] for task in plan["tasks"]}


def test_with_min_hosts_a_run_goes_on_with_fewer(four: Desk) -> None:
    desk = four
    desk.timings = FAST
    desk.write_hosts(desk.cluster.hosts, job="[job]\nhost_timeout = 1\nfailure_grace = 0.1\n")
    how = WAIT + "\nif attempt > 1: print(os.environ['TF_CONFIG'], flush=True)"
    viewer = desk.launch("--max-restarts", "1", "--min-hosts", "3", "--", trainer(desk), how)
    run = desk.run_id()
    half_way(desk, run, 4)
    power_off(desk, run, 1)
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert f"{desk.cluster.hosts[1].name}: cannot be reached; the others continue without it" in viewer.stderr
    seen = [json.loads(log(desk, run, 2, f"worker-{n}").splitlines()[1]) for n in range(3)]
    assert [one["task"]["index"] for one in seen] == [0, 1, 2]
    assert all(len(one["cluster"]["worker"]) == 3 for one in seen)
    assert not (desk.run_folder(run) / "logs" / "2" / "worker-3.log").exists()


def test_a_stop_clears_a_host_that_was_left_out_and_answers_again(four: Desk) -> None:
    """As the run's last words say; how the run ended stays as it was."""
    desk = four
    desk.timings = FAST
    desk.write_hosts(desk.cluster.hosts[:2], job="[job]\nhost_timeout = 1\nfailure_grace = 0.1\n")
    viewer = desk.launch("--max-restarts", "1", "--min-hosts", "1", "--", trainer(desk), WAIT)
    run = desk.run_id()
    half_way(desk, run, 2)
    power_off(desk, run, 1)
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert ended(desk, run)["unproven"] == [desk.cluster.hosts[1].name]
    desk.start_sshd(desk.cluster.servers[1])
    stop = desk.start("stop", run)
    assert stop.wait() == ExitStatus.OK, stop.stderr
    last = desk.named("RunEnded", run)[-1]
    assert (last["outcome"], last["unproven"]) == ("succeeded", [])
    desk.hosts_are_quiet(run)


def test_too_few_hosts_end_the_restarts(desk: Desk) -> None:
    desk.timings = FAST
    desk.write_hosts(desk.cluster.hosts, job="[job]\nhost_timeout = 1\nfailure_grace = 0.1\n")
    viewer = desk.launch("--max-restarts", "5", "--", trainer(desk), WAIT)
    run = desk.run_id()
    half_way(desk, run, 2)
    name = desk.cluster.hosts[1].name
    power_off(desk, run, 1)
    assert viewer.wait() == ExitStatus.RUN_FAILED
    assert f"not started again: {name} cannot be reached, no spare fits" in viewer.stderr
    assert ended(desk, run)["kind"] == "host-lost"
    assert ended(desk, run)["cause"].startswith(f"{name}: the host stopped answering")


def test_a_host_that_comes_back_in_time_keeps_its_place(four: Desk) -> None:
    desk = four
    desk.timings = {**FAST, "host_return": 60.0}
    spares(desk, 3, job="[job]\nhost_timeout = 60\nfailure_grace = 0.1\n")
    viewer = desk.launch("--max-restarts", "1", "--", trainer(desk), WAIT)
    run = desk.run_id()
    half_way(desk, run, 3)
    power_off(desk, run, 1)
    viewer.shows("no word from it")
    desk.start_sshd(desk.cluster.servers[1])
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert not desk.named("HostReplaced", run)
    assert log(desk, run, 2, "worker-1").startswith("attempt 2 begins at 5")
    desk.hosts_are_quiet(run)


def test_a_spare_gets_the_code_as_it_was_at_the_launch(four: Desk) -> None:
    """Also from a keeper that never had it: it takes it from a host that goes on."""
    desk = four
    desk.timings = FAST
    spares(desk, 3, job="[job]\nhost_timeout = 1\nfailure_grace = 0.1\n")
    how = WAIT + "\nprint('old code', pathlib.Path('data.txt').read_text(), flush=True)"
    desk.script("data.txt", "as it was")
    viewer = desk.launch("--max-restarts", "1", "--", trainer(desk), how)
    run = desk.run_id()
    half_way(desk, run, 3)
    desk.script("data.txt", "edited since")
    viewer.signal(signal.SIGKILL)
    os.kill(desk.keeper(run), signal.SIGKILL)
    tail = desk.start("tail", run)
    tail.shows("now kept by")
    power_off(desk, run, 1)
    assert tail.wait() == ExitStatus.OK, tail.stderr
    assert "old code as it was" in log(desk, run, 2, "worker-1")


def test_a_spare_gets_the_data_from_the_hosts_that_go_on(four: Desk) -> None:
    desk = four
    desk.timings = FAST
    (desk.folder / "numbers").write_bytes(b"1 2 3\n" * 1_000_000)
    job = '[data]\npaths = ["numbers"]\n[job]\nhost_timeout = 1\nfailure_grace = 0.1\n'
    spares(desk, 3, job=job)
    how = WAIT + "\nprint('read', len(open(os.environ['ORCHESTRATE_DATA'] + '/numbers').read()), flush=True)"
    cache = str(desk.folder / "cache")
    viewer = desk.launch("--max-restarts", "1", "--", trainer(desk), how, XDG_CACHE_HOME=cache)
    run = desk.run_id()
    half_way(desk, run, 3)
    power_off(desk, run, 1)
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert "read 6000000" in log(desk, run, 2, "worker-1")
    spare = desk.cluster.hosts[3].name
    (placed,) = [event for event in desk.named("DataPlaced", run) if event["host"] == spare]
    assert (placed["sent"], placed["peers"]) == (0, 6_000_000)


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
    viewer = desk.launch("--max-restarts", "2", "--", trainer(desk), how)
    run = desk.run_id()
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
    said = [log(desk, run, 2, f"worker-{n}").splitlines()[1] for n in range(3)]
    assert said == ["backup 5"] * 3
    assert f"backup (1 B) was copied from {names[0]} to" in viewer.stderr
    # Now the one that had the newest: what was copied before is used, and that is said.
    desk.start_sshd(desk.cluster.servers[1])
    until("the first host is back", lambda: "back after" in viewer.stderr)
    power_off(desk, run, 0)
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert [log(desk, run, 3, f"worker-{n}").splitlines()[1] for n in range(3)] == ["backup 5"] * 3
    assert f"{names[0]} is lost with its newest backup" in viewer.stderr
    assert ("worker/0", names[1]) in [tuple(p) for p in desk.named("AttemptPlanned", run)[-1]["tasks"]]


def test_a_host_whose_disk_forgot_its_folder_gets_the_backup_back(desk: Desk) -> None:
    """As after a restart of a machine, or of a container, that keeps nothing."""
    desk.timings = FAST
    desk.write_hosts(desk.cluster.hosts, job='[job]\nfailure_grace = 0.1\nbackup = "backup"\n')
    how = """
import shutil
backup = pathlib.Path("backup/step")
print("backup", backup.read_text() if backup.exists() else "none", flush=True)
def fail(step):
    if me["index"] == 0 and step == 5 and attempt == 1:
        backup.parent.mkdir()
        backup.write_text("5")
    if me["index"] == 0 and attempt < 3:
        if attempt == 2:
            shutil.rmtree(os.getcwd())
        if step >= 5:
            sys.exit(attempt)
"""
    viewer = desk.launch("--max-restarts", "2", "--", trainer(desk), how)
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    run, name = desk.run_id(), desk.cluster.hosts[0].name
    assert [log(desk, run, 3, f"worker-{n}").splitlines()[1] for n in range(2)] == ["backup 5"] * 2
    assert f"{name} has lost its folder with its newest backup" in viewer.stderr


def test_a_new_keeper_knows_what_a_spare_has_still_to_show(four: Desk) -> None:
    """Killed while the spare is examined: it is examined again, and the backup is not taken from it."""
    desk = four
    desk.timings = FAST
    desk.script(
        "v.py", "import os, time\nif '-04/' in os.getcwd(): print('here', flush=True); time.sleep(600)"
    )
    job = '[job]\nhost_timeout = 1\nfailure_grace = 0.1\nbackup = "backup"\nvalidate = "python3 v.py"\n'
    spares(desk, 2, 3, job=job)
    names = [host.name for host in desk.cluster.hosts]
    how = WAIT + "\npathlib.Path('backup').mkdir(exist_ok=True)"
    viewer = desk.launch("--skip-preflight", "--max-restarts", "2", "--", trainer(desk), how, fast=False)
    run = desk.run_id()
    half_way(desk, run, 2)
    desk.kill_sshd(desk.cluster.servers[2])
    power_off(desk, run, 0)
    path = desk.run_folder(run) / "logs" / "validate-2" / "worker-0.log"
    until("the spare is examined", lambda: path.exists() and path.read_bytes())
    viewer.signal(signal.SIGKILL)
    os.kill(desk.keeper(run), signal.SIGKILL)
    desk.start_sshd(desk.cluster.servers[2])
    desk.timings = {**FAST, "validation": 6.0}  # one never ends, the other one takes a moment
    tail = desk.start("tail", "--notes", run)
    assert tail.wait() == ExitStatus.OK, tail.stderr
    assert f"{names[3]} cannot stand in for another host (validate: had not finished" in tail.stderr
    assert f"{names[0]}: cannot be reached; {names[2]} takes its place" in tail.stderr
    assert f"backup was only on {names[0]}, which is lost" in tail.stderr
    desk.hosts_are_quiet(run)


UNFIT = """
import os, sys
print("validating in", os.getcwd(), flush=True)
sys.exit("no TensorFlow here" if "-04/" in os.getcwd() else 0)
"""


def test_a_spare_that_is_no_use_is_left_out(desk_of_five: Desk) -> None:
    """One cannot be reached, one fails alone: the next one is taken, in the same attempt."""
    desk = desk_of_five
    desk.timings = FAST
    desk.script("v.py", UNFIT)
    job = '[job]\nhost_timeout = 1\nfailure_grace = 0.1\nvalidate = "python3 v.py"\n'
    spares(desk, 2, 3, 4, job=job)
    names = [host.name for host in desk.cluster.hosts]
    desk.kill_sshd(desk.cluster.servers[2])
    viewer = desk.launch("--skip-preflight", "--max-restarts", "1", "--", trainer(desk), WAIT, fast=False)
    run = desk.run_id()
    half_way(desk, run, 2)
    power_off(desk, run, 1)
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert f"{names[2]} cannot stand in for another host: " in viewer.stderr
    assert f"{names[3]} cannot stand in for another host (validate: fails in its local" in viewer.stderr
    assert f"{names[1]}: cannot be reached; {names[4]} takes its place" in viewer.stderr
    assert ended(desk, run)["attempts"] == 2
    assert log(desk, run, 2, "worker-1").startswith("attempt 2 begins at 0")
    # Each validation has a log of its own.
    validated = [log(desk, run, name, "worker-1") for name in ("validate", "validate-2", "validate-2-1")]
    assert [next(n for n in names if f"/{n}/" in text) for text in validated] == [names[n] for n in (1, 3, 4)]
    plan = json.loads((desk.run_folder(run) / "plan.json").read_text())
    assert plan["unfit"] == [names[3]]
    assert not plan["preparing"]["stands_in"]


def test_no_attempt_starts_beside_a_task_that_cannot_be_ended(desk: Desk) -> None:
    """Its lock stays taken, as by a supervisor whose task waits in the kernel."""
    desk.timings = {**FAST, "release": 1.0}
    desk.write_hosts(desk.cluster.hosts, job="[job]\nfailure_grace = 0.1\n")
    viewer = desk.launch("--max-restarts", "1", "--", trainer(desk), WAIT)
    run = desk.run_id()
    half_way(desk, run, 2)
    lock = desk.node_log(desk.cluster.hosts[1], run, "worker-1").with_name("lock")
    ours = [desk.machine_of(run, "worker-1", name) for name in ("orch-supervisor", "orch-guard")]
    with subprocess.Popen(["flock", "--no-fork", lock, "sleep", "600"]) as holder:
        try:
            until("it waits for the lock", lambda: _waits_for(holder.pid, lock))
            kill_all(ours)
            for pid in desk.task_pids(run, "worker/0"):
                os.kill(pid, signal.SIGKILL)
            assert viewer.wait() == ExitStatus.RUN_FAILED, viewer.stderr
        finally:
            holder.kill()
    name = desk.cluster.hosts[1].name
    assert f"{name} still runs worker/1 of the last attempt" in viewer.stderr
    assert not [event for event in desk.named("TaskStarted", run) if event["attempt"] == 2]
    stop = desk.start("stop", run)
    assert stop.wait() == ExitStatus.OK, stop.stderr
    desk.hosts_are_quiet(run)


def _waits_for(pid: int, lock: Path) -> bool:
    inode = str(lock.stat().st_ino)
    waiters = (line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line)
    return any(words[5] == str(pid) and words[6].endswith(f":{inode}") for words in waiters)


@pytest.mark.parametrize("spare_is_there", [True, False])
def test_a_host_that_is_away_as_the_launch_begins_has_its_place_taken(
    four: Desk, spare_is_there: bool
) -> None:
    desk = four
    desk.timings = FAST
    spares(desk, 2, 3)
    desk.kill_sshd(desk.cluster.servers[0])
    desk.kill_sshd(desk.cluster.servers[2])
    if not spare_is_there:
        desk.kill_sshd(desk.cluster.servers[3])
    names = [host.name for host in desk.cluster.hosts]
    viewer = desk.launch("--max-restarts", "1", "--", trainer(desk), "fail = lambda step: None")
    if spare_is_there:
        assert viewer.wait() == ExitStatus.OK, viewer.stderr
        run = desk.run_id()
        assert f"{names[0]}: cannot be reached; {names[3]} takes its place" in viewer.stderr
        assert f"warning: {names[0]} refused the connection" in viewer.stderr
        assert f"note: {names[2]} cannot stand in for another host: refused the connection" in viewer.stderr
        placed = [tuple(pair) for pair in desk.named("AttemptPlanned", run)[-1]["tasks"]]
        assert placed == [("worker/0", names[3]), ("worker/1", names[1])]
        assert log(desk, run, 1, "worker-0").endswith("trained 20\n")
        assert (ended(desk, run)["attempts"], ended(desk, run)["unproven"]) == (1, [])
    else:
        assert viewer.wait() == ExitStatus.CLUSTER, viewer.stderr
        assert f"error: {names[0]}" in viewer.stderr
        assert "refused the connection" in viewer.stderr
        assert not desk.named("HostReplaced", desk.run_id())


def test_a_host_that_refuses_us_as_the_launch_begins_is_a_mistake_to_be_mended(four: Desk) -> None:
    desk = four
    spares(desk, 3)
    head, *hosts = desk.hosts.read_text().split("[[host]]")
    hosts[0] = "".join(line for line in hosts[0].splitlines(True) if not line.startswith("user"))
    desk.hosts.write_text("[[host]]".join([head, f'{hosts[0]}user = "no-such-user"\n', *hosts[1:]]))
    viewer = desk.launch("--max-restarts", "1", "--", trainer(desk), "fail = lambda step: None")
    assert viewer.wait() == ExitStatus.CLUSTER, viewer.stderr
    assert "refused the login" in viewer.stderr
    assert not desk.named("HostReplaced", desk.run_id())
