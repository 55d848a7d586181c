"""The exit status is the run's, whatever comes in the last moments of the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus

# From here on, until the process is gone, it is told Ctrl-C without a pause.
_IMPATIENT = """
import atexit, os, subprocess, sys
from orchestrator.cli.main import run
sys.argv = ["orchestrate", "runs"]
sender = f"exec > /dev/null 2>&1; while kill -INT {os.getpid()}; do :; done"
atexit.register(lambda: subprocess.Popen(["sh", "-c", sender]))
class Slow:
    def __del__(self, sleep=__import__("time").sleep):
        sleep(0.2)  # the interpreter's own end, made long enough to be hit
slow = Slow()
run()
"""
_NO_RUNS = "no runs yet; orchestrate launch starts one\n"


def test_ctrl_c_while_the_interpreter_ends_does_not_change_the_status(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPATIENT],
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, _NO_RUNS)


@pytest.mark.parametrize("unbuffered", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
def test_a_full_disk_behind_stdout_is_said(tmp_path: Path, unbuffered: dict[str, str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from orchestrator.cli.main import run; run()", "--help"],
            env=os.environ | {"XDG_STATE_HOME": str(tmp_path)} | unbuffered,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == ExitStatus.USAGE
    assert done.stderr == (
        "error: what was to be shown could not be written\n  why: No space left on device\n"
    )


def test_a_reader_who_has_gone_is_no_failure(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", "from orchestrator.cli.main import run; run()", "--help"],
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
