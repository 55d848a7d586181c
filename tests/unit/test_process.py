"""The process of a command until it ends, and the processes it starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from orchestrator.node.base.program import Said
from orchestrator.processes import run
from tests.polling import poll

# From here until the process is gone, it receives Ctrl-C continuously.
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
_CODE = "from orchestrator.cli.main import run; run()"


def orchestrate(
    *words: str, state: Path, code: str = _CODE, output: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env=os.environ | {"XDG_STATE_HOME": str(state)},
        cwd=state,
        stdout=output,
        stderr=output,
        text=True,
        errors="surrogateescape",
        timeout=60,
        check=False,
    )


def test_ctrl_c_at_interpreter_shutdown_does_not_change_the_status(tmp_path: Path) -> None:
    done = orchestrate(state=tmp_path, code=_IMPATIENT)
    assert (done.returncode, done.stdout + done.stderr) == (0, "no runs yet; orchestrate launch starts one\n")


def test_a_closed_pipe_does_not_change_the_status(tmp_path: Path) -> None:
    """With `2>&1 | head`, once head has exited, both stderr and stdout are closed."""
    reader, writer = os.pipe()
    os.close(reader)
    done = orchestrate("launch", "--hosts", "none.toml", state=tmp_path, output=writer)
    os.close(writer)
    assert done.returncode == ExitStatus.USAGE


def test_debug_shows_the_location_and_keeps_the_status(tmp_path: Path) -> None:
    done = orchestrate("launch", "--debug", "--hosts", "none.toml", state=tmp_path)
    assert done.returncode == ExitStatus.USAGE
    assert "Traceback" in done.stderr
    assert "\nerror: there is no none.toml\n" in done.stderr


def test_a_bug_has_its_own_status(tmp_path: Path) -> None:
    bug = "from orchestrator.cli import main, runs; runs.main = lambda _: {}['nothing']; main.run()"
    done = orchestrate("runs", state=tmp_path, code=bug)
    assert done.returncode == 4
    assert "KeyError: 'nothing'\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_local_failure_is_not_a_bug(tmp_path: Path) -> None:
    """If the current folder was removed, every verb reports a missing file."""
    code = f"import os; os.mkdir('d'); os.chdir('d'); os.rmdir('../d'); {_CODE}"
    for verb in (["status"], ["launch", "--", "true"], ["exec", "--", "true"]):
        done = orchestrate(*verb, state=tmp_path, code=code)
        assert (done.returncode, done.stdout) == (ExitStatus.HERE, "")
        assert done.stderr.startswith("error: orchestrate failed on this machine\n  why: No such file")


HEAVY = ("argcomplete", "asyncio", "cryptography", "fabric", "paramiko", "pathspec", "rich", "tomllib")


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("from orchestrator.cli.main import run", ("argparse", "dataclasses", "orchestrator.model")),
        ("from orchestrator.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass", HEAVY),
        ("from orchestrator.node.stock import work", ("configparser", "ctypes", "subprocess", "tempfile")),
    ],
    ids=["before Ctrl-C is taken", "for --help", "on a host"],
)
def test_few_modules_are_loaded(code: str, modules: tuple[str, ...], tmp_path: Path) -> None:
    loaded = f"print([name for name in {modules!r} if name in sys.modules])"
    done = orchestrate(state=tmp_path, code=f"import sys\n{code}\n{loaded}")
    assert done.stdout.splitlines()[-1] == "[]"


# --- Programs end at their deadline, whatever they and their children do, and with their parent ---

DEAF = "trap '' TERM; sleep 1000 & sleep 1000"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo a; echo b >&2; exit 3", Said(b"a\n", b"b\n", 3, "")),
        ("printf %020d 7", Said(b"0000000007", b"", 0, "")),  # the last bytes
        ("kill -9 $$", Said(b"", b"", -9, "")),
        ("sleep 1000 & echo left", Said(b"left\n", b"", 0, "")),  # a child has the pipe
        (DEAF, Said(b"", b"", -9, "no answer within 2 s")),
        ("cat", Said(b"", b"", 0, "")),
        ("exec >&- 2>&-; sleep 1000", Said(b"", b"", -9, "no answer within 2 s")),
    ],
)
def test_a_program_is_over_in_time(script: str, said: Said) -> None:
    limit = 2.0 if said.why else 30.0
    assert run(["sh", "-c", script], limit, most=10) == said


def test_a_flood_of_output_is_truncated() -> None:
    done = run(["cat", "/dev/zero"], 60.0, most=10)
    assert (done.why, done.out) == ("it printed more than 64 MB", bytes(10))


@pytest.mark.parametrize("number", [signal.SIGINT, 0], ids=["Ctrl-C", "its end"])
def test_processes_end_with_their_parent(number: int) -> None:
    code = f"""
import sys, threading, time
from orchestrator import processes
threading.Thread(target=processes.run, args=(["sh", "-c", "echo $$; {DEAF}"], 600), daemon=True).start()
while not processes.alive: time.sleep(0.01)
print(next(iter(processes.alive)).pid, flush=True)
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
