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


def test_a_full_disk_behind_stdout_is_said(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from orchestrator.cli.main import run; run()", "--help"],
            env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
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


@pytest.mark.parametrize("line", ["launch -- train.py", "exec -- id"])
def test_a_folder_that_was_removed_under_the_shell_is_said(tmp_path: Path, line: str) -> None:
    here = tmp_path / "here"
    here.mkdir()
    done = subprocess.run(
        [
            "sh",
            "-c",
            f'rmdir ../here && exec "$0" -c "from orchestrator.cli.main import run; run()" {line}',
            sys.executable,
        ],
        cwd=here,
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ExitStatus.USAGE
    assert done.stderr.startswith('error: the current folder has been removed\n  try: `cd "$PWD"`')


_CODE = "from orchestrator.cli.main import run; run()"


def orchestrate(
    *words: str, state: Path, timeout: float = 60, code: str = _CODE
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env=os.environ | {"XDG_STATE_HOME": str(state)},
        cwd=state,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=timeout,
        check=False,
    )


def test_a_pipe_that_was_closed_does_not_change_the_status(tmp_path: Path) -> None:
    """`2>&1 | head`, and head has gone: stderr is as closed as stdout is."""
    words = ("launch", "--hosts", "none.toml")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *words],
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
        cwd=tmp_path,
        stdout=writer,
        stderr=writer,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert done.returncode == ExitStatus.USAGE


def test_debug_shows_where_and_leaves_the_status(tmp_path: Path) -> None:
    done = orchestrate("launch", "--debug", "--hosts", "none.toml", state=tmp_path)
    assert done.returncode == ExitStatus.USAGE
    assert "Traceback" in done.stderr
    assert "\nerror: there is no none.toml\n" in done.stderr


_BUG = """
from orchestrator.cli import main, runs
runs.main = lambda _: {}["nothing"]
main.run()
"""


def test_a_bug_has_a_status_of_its_own(tmp_path: Path) -> None:
    done = orchestrate("runs", state=tmp_path, code=_BUG)
    assert done.returncode == 4
    assert "KeyError: 'nothing'\n" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_an_inventory_that_is_no_file_is_one_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "hosts.toml"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case _:
            path.symlink_to("/dev/zero")
    done = orchestrate("launch", "--hosts", str(path), state=tmp_path, timeout=30)
    assert done.returncode == ExitStatus.USAGE
    assert done.stderr.count("error:") == 1
    assert str(path) in done.stderr
