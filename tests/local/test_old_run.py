"""A run of an earlier version that never ended is stopped, over hosts that know nothing of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus

ROOT = Path(__file__).parents[2]
RUN = "20261122-025218-26d3"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user's home with the run as a keeper left it that was killed before the end."""
    folder = tmp_path / ".local" / "state" / "orchestrate" / "runs" / RUN
    shutil.copytree(ROOT / "tests" / "unit" / "old_run" / RUN, folder)
    events = folder / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["event"] not in ("RunEnded", "TaskExited")]
    assert len(kept) == len(lines) - 3
    events.write_text("".join(kept))
    return tmp_path


def orchestrate(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    return subprocess.run(
        [sys.executable, "-c", "from orchestrator.cli.main import run; run()", *words],
        env={**environment, "HOME": str(home), "PYTHONPATH": str(ROOT)},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("words", [("stop",), ("stop", "--now", "old")])
def test_it_is_stopped(home: Path, words: tuple[str, ...]) -> None:
    stop = orchestrate(home, *words)
    assert stop.returncode == ExitStatus.OK, stop.stdout + stop.stderr
    assert "was stopped" in stop.stdout + stop.stderr
    again = orchestrate(home, "stop", RUN)
    assert "is over already" in again.stderr
    assert orchestrate(home, "status", RUN).returncode == ExitStatus.OK


def test_a_host_with_more_runs_than_it_can_tell_says_so(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (tmp_path / "hosts.toml").write_text(
        f'[[host]]\nname = "here"\nssh = "local"\naddress = "127.0.0.1"\nstate = "{state}"\n'
        f'agent_python = "{sys.executable}"\n'
    )
    for number in range(500):
        folder = state / "runs" / f"20260101-000000-{number:04}"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text("x" * 40_000)  # the plan of 64 hosts
    tail = orchestrate(tmp_path, "tail", "somebody-s")
    assert "older runs left out: it keeps too many (`orchestrate clean`)" in tail.stderr
    assert "know none either" in tail.stderr
    assert tail.returncode == ExitStatus.USAGE
