"""The logs of a rehearsal are kept where runs are, be it another file system."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from orchestrator.cli import rehearse


def test_a_run_s_folder_is_kept_on_another_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    run = tmp_path / "20261122-010101-abcd"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "worker-0.log").write_text("a line\n")
    os.mkfifo(run / "control")
    with tempfile.TemporaryDirectory(dir=shm) as state:
        monkeypatch.setenv("XDG_STATE_HOME", state)
        rehearse._keep(run)
        kept = Path(state) / "orchestrate" / "runs" / run.name
        assert (kept / "logs" / "worker-0.log").read_text() == "a line\n"
        assert not (kept / "control").exists()
