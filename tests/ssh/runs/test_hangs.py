"""Tasks that hang are detected, inspected, named, and ended as configured."""

import json
import signal

import pytest

from orchestrator.errors import ExitStatus
from orchestrator.text import duration
from tests.ssh.runs.desk import Desk, until

# Steps like the others, then hangs in its own way; the others wait for it forever.
TRAINER = """
import json, os, signal, sys, threading, time

HANGING = os.environ["ORCHESTRATE_TASK"].split("/")[2:4] == ["worker", "1"]


def wait_for_the_others():
    time.sleep(600)


def deadlock():
    lock = threading.Lock()
    with lock, lock:
        pass


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def doze():
    os.mkfifo("bed")
    open("bed").read()
    print("turns around", flush=True)
    open("bed").read()
    sys.exit(0)


for step in (1, 2):
    with open(os.environ["ORCHESTRATE_REPORT"], "a") as file:
        file.write(json.dumps({"kind": "progress", "step": step}) + "\\n")
print("has stepped", flush=True)
if HANGING or sys.argv[1] == "doze":
    {"deadlock": deadlock, "stop": stop, "doze": doze}[sys.argv[1]]()
wait_for_the_others()
"""

# Silence counts from a task's start: a slow Python startup on a busy machine must not count as a hang.
FAST = ("--hang-timeout", "3")


def test_a_hanging_task_is_named_and_the_run_ends(four: Desk) -> None:
    desk = four
    viewer = desk.launch(*FAST, "--", desk.script("t.py", TRAINER), "stop").ended(ExitStatus.RUN_FAILED)
    (suspected,) = desk.named("HangSuspected")
    assert (suspected["kind"], suspected["tasks"]) == ("silent", [f"worker/{index}" for index in range(4)])
    (taken,) = desk.named("StacksTaken")
    assert taken["odd"] == ["worker/1"]
    assert taken["missing"] == []
    host = desk.cluster.hosts[1].name
    assert taken["found"] == f"worker/1 on {host} is stopped (SIGSTOP)"
    whole = (desk.run_folder() / "stacks").iterdir()
    assert [str(path) for path in whole] == [taken["file"]]
    (ended,) = desk.named("RunEnded")
    assert ended["cause_task"] == "worker/1"
    assert suspected["seconds"] >= 3.0
    assert ended["cause"] == f"no output for {duration(suspected['seconds'])}: {taken['found']}"
    assert ended["last_lines"][-1] == "has stepped"
    assert taken["file"] in ended["hint"]
    assert "stopping the tasks: the tasks hang" in viewer.stderr
    assert f"error: {ended['cause']}" in viewer.stderr
    desk.nothing_is_left(desk.run_id())


def test_a_hang_can_be_reported_only_and_resolve(desk: Desk) -> None:
    desk.script("t.py", TRAINER)
    desk.write_hosts(desk.cluster.hosts, job='[job]\non_hang = "report"')
    viewer = desk.launch(*FAST, "--", "t.py", "doze")
    viewer.shows("all stacks: ")
    viewer.shows("no task differs from the others: worker/[0-1] at t.py:23 in doze")
    status = desk.start("status").ended()
    assert "silent, perhaps hanging: worker/[0-1]" in status.stdout
    for host in desk.cluster.hosts:
        (desk.node_work(host, desk.run_id()) / "bed").write_text("up!")
    viewer.shows("the tasks no longer seem to hang")
    for host in desk.cluster.hosts:
        (desk.node_work(host, desk.run_id()) / "bed").write_text("up!")
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert not desk.named("StopRequested")


def test_stacks_can_be_requested_from_any_machine(desk: Desk) -> None:
    viewer, run = desk.begin("--name", "night", "--", desk.script("t.py", TRAINER), "deadlock")
    until("both have stepped", lambda: viewer.stdout.count("has stepped") == 2)
    first, second = (host.name for host in desk.cluster.hosts)
    asked = desk.start("stacks", "night").ended()
    assert "  t.py:13 in deadlock" in asked.stdout
    assert f"worker/0  {first}" in asked.stdout
    path = asked.stdout.strip().rpartition("all stacks: ")[2]
    with open(path) as file:  # noqa: PTH123
        assert f"==== worker/1 on {second}, attempt 1" in file.read()
    with desk.elsewhere():
        there = desk.start("stacks", run, "--hosts", str(desk.hosts), "--json").ended()
    found = json.loads(there.stdout)
    alone = next(group for group in found["groups"] if group["tasks"] == ["worker/1"])
    assert alone["frames"][0] == "t.py:13 in deadlock"
    assert not desk.named("HangSuspected")
    desk.kill_sshd(desk.cluster.servers[1])
    asked = desk.start("stacks").ended(ExitStatus.CLUSTER)
    assert f"warning: no stacks from {second}: " in asked.stderr
    assert "t.py:8 in wait_for_the_others" in asked.stdout
    desk.start_sshd(desk.cluster.servers[1])
    until("it is back", lambda: desk.named("HostRecovered"))

    viewer.signal(signal.SIGINT)
    viewer.wait()
    late = desk.start("stacks").ended(ExitStatus.USAGE)
    assert f"no task of run {run} is alive" in late.stderr
    desk.nothing_is_left(run)


# A failed process kept alive by a thread, and a feeder whose end the main thread does not notice.
OUTLIVED = """
import multiprocessing, os, queue, sys, threading, time

FAILS = os.environ["ORCHESTRATE_TASK"].split("/")[2:4] == ["worker", "1"]
HOW = sys.argv[1]


def work():
    time.sleep(600)


def feed():
    raise ValueError("row 5 has no label")


if HOW == "thread":
    threading.Thread(target=work, name="keeper").start()
if HOW == "child":
    multiprocessing.get_context("fork").Process(target=work, name="keeper").start()
if HOW == "feeder" and FAILS:
    threading.Thread(target=feed, name="feeder").start()
    queue.Queue().get()
elif FAILS:
    sys.excepthook = lambda kind, *rest: print("a hook of its own:", kind.__name__)
    raise RuntimeError("worker 1 lost its data")
work()
"""


@pytest.mark.parametrize("how", ["thread", "child", "feeder"])
def test_an_exception_that_leaves_its_task_alive_is_the_root_cause(desk: Desk, how: str) -> None:
    desk.script("t.py", OUTLIVED)
    desk.timings = {"held": 0.5}
    patience = FAST if how == "feeder" else ()
    viewer = desk.launch(*patience, "--", "t.py", how).ended(ExitStatus.RUN_FAILED)
    (ended,) = desk.named("RunEnded")
    host = desk.cluster.hosts[1].name
    if how == "feeder":
        cause = "its thread feeder ended with ValueError: row 5 has no label (t.py, line 13)"
        assert cause in ended["cause"]
    else:
        cause = f"worker/1 on {host} raised RuntimeError: worker 1 lost its data, and"
        kept = {"thread": "thread", "child": "process"}[how]
        assert ended["cause"] == f"{cause} {kept} keeper kept it from ending"
        assert ended["why"] == "raised at t.py, line 25"
        assert "stopping the tasks: worker/1 has failed, but does not end" in viewer.stderr
    assert ended["cause_task"] == "worker/1"
    desk.nothing_is_left(desk.run_id())
