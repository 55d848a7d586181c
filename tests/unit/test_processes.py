"""Programs end at their deadline, whatever they and their children do, and with whoever started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from orchestrator.processes import Completed, run
from tests.polling import poll

DEAF = "trap '' TERM; sleep 1000 & sleep 1000"


@pytest.mark.parametrize(
    ("script", "completed"),
    [
        ("echo a; echo b >&2; exit 3", Completed(3, b"a\n", b"b\n")),
        ("printf %020d 7", Completed(0, b"0000000007", b"")),  # the last bytes
        ("kill -9 $$", Completed(-9, b"", b"")),
        ("sleep 1000 & echo left", Completed(0, b"left\n", b"")),  # a child has the pipe
        (DEAF, Completed(None, b"", b"")),
        ("cat", Completed(0, b"", b"")),
        ("exec >&- 2>&-; sleep 1000", Completed(None, b"", b"")),
    ],
)
def test_a_program_is_over_in_time(script: str, completed: Completed) -> None:
    limit = 2.0 if completed.status is None else 30.0
    assert run(["sh", "-c", script], limit, most=10) == completed


def test_a_flood_is_cut() -> None:
    done = run(["cat", "/dev/zero"], 60.0, most=10)
    assert (done.status, done.out) == (None, bytes(10))


@pytest.mark.parametrize("number", [signal.SIGINT, 0], ids=["Ctrl-C", "its end"])
def test_they_end_with_whoever_started_them(number: int) -> None:
    code = f"""
import sys, threading, time
from orchestrator import processes
threading.Thread(target=processes.run, args=(["sh", "-c", "echo $$; {DEAF}"], 600), daemon=True).start()
while not processes._alive: time.sleep(0.01)
print(next(iter(processes._alive)).pid, flush=True)
sys.stdin.read()
processes.end_all()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as starter:
        assert starter.stdout is not None
        group = int(starter.stdout.readline())
        if number:
            starter.send_signal(number)
        starter.communicate(timeout=60)

    def is_gone() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    assert poll(is_gone, 20)
