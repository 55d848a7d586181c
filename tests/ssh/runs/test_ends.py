"""Runs that succeed, fail, or are stopped, and leave nothing behind."""

import os
import signal

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk, until

# Ignores TERM as TensorFlow does, and waits forever.
STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    time.sleep(1)
"""


def test_a_successful_run(desk: Desk) -> None:
    viewer = desk.launch("--", "sh", "-c", "echo hello from $ORCHESTRATE_TASK; echo oops >&2").ended()
    run = desk.run_id()
    for task in ("worker/0", "worker/1"):
        assert f"hello from {run}/1/{task}/" in viewer.stdout
    assert viewer.stdout.count("oops") == 2
    desk.logs_are_identical(run)
    desk.nothing_is_left(run)


FAILS = 'open("begun", "w").close()\nraise ValueError("no data")\n'
# multiprocessing's resource tracker ignores TERM, and ends when its pipe closes.
TRACKED = (
    "from multiprocessing import shared_memory as m\nb = m.SharedMemory(create=True, size=9)\nb.unlink()\n"
)
SLEEPS = 'import time\nopen("begun", "w").close()\ntime.sleep(60)\n'
CHILD = (
    "from multiprocessing import Process\n\n\ndef train():\n    raise ValueError('no data')\n\n\n"
    "if __name__ == '__main__':\n    p = Process(target=train)\n    p.start()\n    p.join()\n"
)
UP = "while ! [ -e begun ]; do sleep 0.01; done"


@pytest.mark.parametrize(
    ("line", "text", "warning"),
    [
        ("python train.py | cat", FAILS, "ended with ValueError: no data (train.py, line 2)"),
        (f"nohup python train.py & {UP}", SLEEPS, "left 1 process behind, which was ended"),
        ("exec python train.py", CHILD, "its process Process-1 ended with ValueError: no data (train.py"),
        ("python train.py; echo done", "print(1)\n", ""),
        ("exec python train.py", TRACKED, ""),
    ],
)
def test_a_script_that_hides_a_failure_succeeds_with_a_warning(
    desk: Desk, line: str, text: str, warning: str
) -> None:
    desk.script("train.py", text)
    viewer = desk.launch("--", "bash", desk.script("run.sh", f"{line}\n")).ended()
    (ended,) = desk.named("RunEnded")
    assert [one.partition(" on ")[0] for one in ended.get("warnings", [])] == ["worker/[0-1]"] * bool(warning)
    assert warning in "".join(ended.get("warnings", []))
    assert ("warning: worker/[0-1] on " in viewer.stderr) == bool(warning)


def test_a_killed_task_ends_the_others_and_is_named(desk: Desk) -> None:
    task = "worker/1"
    viewer, run = desk.begin("--", desk.script("t.py", STUBBORN))
    until("both are up", lambda: viewer.stdout.count("up") == 2)
    (victim,) = desk.task_pids(run, task)
    os.kill(victim, signal.SIGKILL)
    assert viewer.wait() == ExitStatus.RUN_FAILED
    (ended,) = desk.named("RunEnded")
    assert ended["cause_task"] == task
    assert "SIGKILL" in ended["cause"]
    assert ended["last_lines"] == ["up"]
    (stopped,) = desk.named("StopRequested")
    assert (stopped["by"], stopped["grace"]) == ("failure", 2.0)
    assert desk.ended_after(task, run) < 15.0  # from failure_grace; after a user's stop they have 30 s
    desk.nothing_is_left(run)
