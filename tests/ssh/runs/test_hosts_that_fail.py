"""Agents that are killed, hosts that hang, hosts that are gone, a clock that is wrong."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import FAMILY, Desk, until
from tests.ssh.runs.phases import hold, traceback_free

# A host that hangs is given up after 20 s; the tests have less time.
IMPATIENT = "import orchestrator.fleet.pulse as p; p.SILENCE, p.BEAT = 3.0, 0.5"

TICKING = """
import os, sys, time
n = 0
while not os.path.exists(sys.argv[1]):
    n += 1
    print("line", n, flush=True)
    time.sleep(0.005)
"""


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Processes that hang."""
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


# --- a host fails in a phase ---


@pytest.mark.parametrize("phase", ["preflight", "stage"])
@pytest.mark.parametrize("how", ["agent killed", "agent hangs", "session hangs"])
def test_a_host_that_fails_before_the_tasks_were_started_is_named(desk: Desk, phase: str, how: str) -> None:
    desk.patch = IMPATIENT
    with ExitStack() as stack:
        held = hold(desk, phase, stack)
        viewer = desk.launch(*held.words, fast=held.fast)
        run = held.reached()
        victim = desk.agents_of(1) if how.startswith("agent") else desk.sessions_of(1)
        if how == "agent killed":
            os.kill(victim[0], signal.SIGKILL)
        else:
            stack.enter_context(stopped(victim))
        assert viewer.wait(30) == ExitStatus.CLUSTER, viewer.stderr
        assert f"{desk.cluster.hosts[1].name} was lost" in viewer.stderr
        assert ("no word for 3 s" in viewer.stderr) == (how != "agent killed"), viewer.stderr
        traceback_free(desk, run)
    desk.hosts_are_quiet(run)


@pytest.mark.parametrize("how", ["agent killed", "agent hangs", "session hangs"])
def test_a_host_that_fails_during_the_validation_is_found_again(desk: Desk, how: str) -> None:
    desk.script("v.py", TICKING)
    desk.write_hosts(desk.cluster.hosts, job='[job]\ngrace = 1\nvalidate = "python3 v.py enough"\n')
    desk.patch = IMPATIENT
    viewer = desk.launch("--skip-preflight", "--", "sh", "-c", "echo trained", fast=False)
    run = desk.run_id()
    log = desk.run_folder(run) / "logs" / "validate" / "worker-1.log"
    until("both validate", lambda: log.exists() and len(desk.task_pids(run)) == 2)
    victims = desk.agents_of(1) if how.startswith("agent") else desk.sessions_of(1)
    with stopped(victims):
        if how == "agent killed":
            os.kill(victims[0], signal.SIGKILL)
        until("the loss is told", lambda: desk.named("HostLost", run))
        until("it is found again", lambda: desk.named("HostRecovered", run))
        for host in desk.cluster.hosts:
            (desk.node_work(host, run) / "enough").touch()
        assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert viewer.stdout.count("trained") == 2
    desk.hosts_are_quiet(run)
    traceback_free(desk, run)


@pytest.mark.parametrize("how", ["agent killed", "agent hangs", "session hangs"])
def test_a_host_that_fails_while_it_trains_is_found_again(desk: Desk, how: str) -> None:
    desk.patch = IMPATIENT
    desk.script("t.py", TICKING)
    viewer = desk.launch("--", "t.py", str(desk.folder / "enough"))
    viewer.shows("line 5")
    run = desk.run_id()
    victims = desk.agents_of(1) if how.startswith("agent") else desk.sessions_of(1)
    with stopped(victims):
        if how == "agent killed":
            os.kill(victims[0], signal.SIGKILL)
        until("the loss is told", lambda: desk.named("HostLost", run))
        (lost,) = desk.named("HostLost", run)
        assert lost["host"] == desk.cluster.hosts[1].name
        until("it is found again", lambda: desk.named("HostRecovered", run))
        (desk.folder / "enough").touch()
        assert viewer.wait() == ExitStatus.OK, viewer.stderr
    desk.logs_are_identical(run)
    desk.hosts_are_quiet(run)


def test_a_validation_on_a_host_that_was_lost_is_ended_too(desk: Desk) -> None:
    """Its agent was killed and its sshd for a moment too, when the user had enough."""
    with ExitStack() as stack:
        held = hold(desk, "validate", stack)
        viewer = desk.launch(*held.words, fast=held.fast)
        run = held.reached()
        desk.kill_sshd(desk.cluster.servers[1])
        until("the loss is told", lambda: desk.named("HostLost", run))
        viewer.signal(signal.SIGINT)
        until("the other one is told", lambda: desk.named("StopRequested", run))
        desk.start_sshd(desk.cluster.servers[1])
        assert viewer.wait(40) == ExitStatus.INTERRUPTED, viewer.stderr
        (ended,) = desk.named("RunEnded", run)
        assert not ended["unproven"], ended
        desk.nothing_is_left(run)


# --- a host fails during the stop ---


def test_a_host_that_is_lost_during_the_stop_is_told_when_it_is_back(desk: Desk) -> None:
    desk.write_hosts(desk.cluster.hosts, job="[job]\ngrace = 2")
    desk.script("t.py", FAMILY)
    viewer = desk.launch("--", "t.py")
    run = desk.run_id()
    until("both families are up", lambda: desk.families_are_up(run, 2))
    desk.kill_sshd(desk.cluster.servers[1])
    viewer.signal(signal.SIGINT)
    until("the stop has begun", lambda: desk.named("StopRequested", run))
    desk.start_sshd(desk.cluster.servers[1])
    assert viewer.wait(40) == ExitStatus.INTERRUPTED, viewer.stderr
    assert not desk.named("RunEnded", run)[0]["unproven"]
    desk.nothing_is_left(run)


def test_all_hosts_lost_a_stop_ends_in_time_and_says_what_it_does_not_know(desk: Desk) -> None:
    desk.patch = "import orchestrator.phases.stop as s; s.UNREACHABLE = s.IMPATIENT = 3.0"
    desk.write_hosts(desk.cluster.hosts, job="[job]\ngrace = 1")
    desk.script("t.py", FAMILY)
    viewer = desk.launch("--", "t.py")
    run = desk.run_id()
    until("both families are up", lambda: desk.families_are_up(run, 2))
    for server in desk.cluster.servers:
        desk.kill_sshd(server)
    until("the losses are told", lambda: len(desk.named("HostLost", run)) == 2)
    viewer.signal(signal.SIGINT)
    assert viewer.wait(30) == ExitStatus.INTERRUPTED, viewer.stderr
    (ended,) = desk.named("RunEnded", run)
    assert ended["unproven"] == [host.name for host in desk.cluster.hosts]
    assert "whether anything of the run is left there is unknown" in viewer.stderr
    assert f"orchestrate stop {run}" in viewer.stderr
    assert desk.task_pids(run)

    helpless = desk.start("stop", run)
    assert helpless.wait() == ExitStatus.CLUSTER
    assert "none of its hosts can be reached" in helpless.stderr

    for server in desk.cluster.servers:
        desk.start_sshd(server)
    stop = desk.start("stop", run)
    assert stop.wait() == ExitStatus.OK, stop.stderr
    desk.nothing_is_left(run)


# --- what a node does by itself ---


@pytest.mark.parametrize("victim", ["orch-guard", "orch-supervisor"])
def test_a_task_whose_guard_or_supervisor_is_killed_fails_the_run(desk: Desk, victim: str) -> None:
    desk.script("t.py", FAMILY)
    viewer = desk.launch("--", "t.py")
    run = desk.run_id()
    until("both families are up", lambda: desk.families_are_up(run, 2))
    os.kill(desk.machine_of(run, "worker-1", victim), signal.SIGKILL)
    assert viewer.wait(30) == ExitStatus.RUN_FAILED, viewer.stderr
    (ended,) = desk.named("RunEnded", run)
    assert ended["cause_task"] == "worker/1", ended
    assert "was killed" in ended["cause"]
    desk.nothing_is_left(run)


def test_a_supervisor_that_the_machine_tells_to_end_fails_the_run(desk: Desk) -> None:
    desk.write_hosts(desk.cluster.hosts, job="[job]\ngrace = 1")
    desk.script("t.py", FAMILY)
    viewer = desk.launch("--", "t.py")
    run = desk.run_id()
    until("both families are up", lambda: desk.families_are_up(run, 2))
    os.kill(desk.machine_of(run, "worker-1", "orch-supervisor"), signal.SIGTERM)
    assert viewer.wait(30) == ExitStatus.RUN_FAILED, viewer.stderr
    (ended,) = desk.named("RunEnded", run)
    assert ended["cause_task"] == "worker/1", ended
    assert "told to end" in ended["cause"]
    desk.nothing_is_left(run)


def test_a_node_that_forgot_its_run_is_told_as_lost(desk: Desk) -> None:
    """A reboot that empties the state folder, as seen from here."""
    import shutil

    desk.script("t.py", TICKING)
    viewer = desk.launch("--", "t.py", str(desk.folder / "enough"))
    viewer.shows("line 5")
    run, host = desk.run_id(), desk.cluster.hosts[1]
    desk.kill_sshd(desk.cluster.servers[1])
    for pid in desk.machinery_of(run, host):
        os.kill(pid, signal.SIGKILL)
    until("its tasks are gone", lambda: not desk.task_pids(run, "worker/1"))
    shutil.rmtree(host.state or "")
    desk.start_sshd(desk.cluster.servers[1])
    assert viewer.wait(40) == ExitStatus.RUN_FAILED, viewer.stderr
    (ended,) = desk.named("RunEnded", run)
    assert ended["cause_task"] == "worker/1", ended
    assert "knows nothing of it" in ended["cause"]


# --- a clock ---

AHEAD = """#!{python}
import sys, time
ahead = 3600
now, now_ns = time.time, time.time_ns
time.time = lambda: now() + ahead
time.time_ns = lambda: now_ns() + ahead * 10**9
exec(sys.argv[sys.argv.index("-c") + 1])
"""


def test_a_clock_that_is_an_hour_ahead_does_not_turn_the_story_round(desk: Desk) -> None:
    first, second = desk.cluster.hosts
    fast = desk.program("fast clock", "")
    python = desk.folder.parent / "fast-clock"  # a first line cannot have spaces in it
    python.write_text(AHEAD.format(python=second.python))
    python.chmod(0o755)
    fast.unlink()
    desk.write_hosts([first, replace(second, agent_python=str(python))])
    desk.script(
        "t.py",
        "import os, sys, time\n"
        "me, mark = os.environ['ORCHESTRATE_TASK'], sys.argv[1]\n"
        "print('up', flush=True)\n"
        "if '/worker/1/' in me:\n"
        "    open(mark, 'w'); print('I was the first', flush=True); sys.exit(5)\n"
        "while not os.path.exists(mark): time.sleep(0.01)\n"
        "time.sleep(0.2); sys.exit(6)\n",
    )
    viewer = desk.launch("--json", "--", "t.py", str(desk.folder / "mark"))
    began = time.time()
    assert viewer.wait() == ExitStatus.RUN_FAILED, viewer.stderr
    (ended,) = desk.named("RunEnded")
    assert ended["cause_task"] == "worker/1", ended
    exits = desk.named("TaskExited")
    assert all(began - 60 < one["ended"] < time.time() + 1 for one in exits), exits
    lines = [event for event in map(json.loads, viewer.stdout.splitlines()) if event["event"] == "LogLine"]
    sent = [line["sent"] for line in lines]
    assert sent
    assert all(began - 60 < when < time.time() + 1 for when in sent), sent


# --- not a byte ---

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


def test_no_byte_is_lost_however_often_connections_are_cut(desk: Desk) -> None:
    dice = random.Random(20261121)
    desk.script("t.py", LOUD)
    assert desk.launch("--detach", "--", "t.py", str(desk.folder / "enough")).wait() == ExitStatus.OK
    run = desk.run_id()
    until("both run", lambda: len(desk.named("TaskStarted", run)) == 2)
    for cut in range(8):
        victims = until("both are followed", lambda: len(found := desk.served()) >= 4 and found)
        with suppress(ProcessLookupError):
            os.kill(dice.choice(victims), signal.SIGKILL)
        if cut == 3:
            os.kill(desk.keeper(run), signal.SIGKILL)
            desk.start("tail", run, "-n", "0")
    (desk.folder / "enough").touch()
    until("the run has ended", lambda: desk.named("RunEnded", run))
    assert desk.named("RunEnded", run)[0]["outcome"] == "succeeded"
    desk.logs_are_identical(run)
    traceback_free(desk, run)
