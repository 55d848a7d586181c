"""`orchestrate init` of a name that nobody knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_name_that_is_nowhere_is_an_error_and_no_endless_look(tmp_path: Path) -> None:
    (tmp_path / "config").touch()
    options = ["--ssh-config", "config", "--yes", "--no-preflight"]
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "init", *options, "no-such-host.invalid"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "no-such-host.invalid" in done.stderr
