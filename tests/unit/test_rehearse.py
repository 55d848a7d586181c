"""What `rehearse` keeps of a run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from orchestrator.cli import rehearse
from orchestrator.names import RunId
from orchestrator.store import RunFolder, find
from tests.unit.plans import host, make


def test_logs_are_kept_on_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK) or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    plan = make(host("a"))
    made = RunFolder(tmp_path, RunId(plan.run))
    made.create(plan)
    os.close(made.open_control())  # a FIFO cannot be copied
    with tempfile.TemporaryDirectory(dir=shared) as state:
        monkeypatch.setenv("XDG_STATE_HOME", state)
        rehearse._keep(made.path)
        kept = find(plan.run)
        assert kept is not None
        assert kept.read_plan() == plan
