"""Which hosts get the backup before another attempt."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.bus import Bus
from orchestrator.fleet import Fleet
from orchestrator.phases import again
from orchestrator.phases.context import Run, Source
from orchestrator.store import RunFolder
from orchestrator.sync import backups
from orchestrator.sync.files import Fetched
from tests.unit.plans import host, make


@pytest.mark.parametrize(
    ("backup", "sent"),
    [
        ("backup", []),
        ("/scratch/b", [("b", "/scratch/b"), ("c", "/scratch/b")]),
        ("~/b", [("b", "~/b"), ("c", "~/b")]),
    ],
)
def test_one_workdir_says_nothing_of_folders_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backup: str, sent: list[tuple[str, str]]
) -> None:
    """A shared workdir holds one backup for all; a full path may lead to a disk of each machine's own."""
    put: list[tuple[str, str]] = []

    def take(session: str, _: Path, remote: str) -> Fetched:
        put.append((session, remote))
        return Fetched(1, 1, 0.0)

    monkeypatch.setattr(backups, "fetch", lambda *_: Fetched(1, 1, 0.0))
    monkeypatch.setattr(backups, "put", take)
    plan = make(host("a"), host("b"), host("c"))
    fleet = Fleet(cast("Any", None), lambda _: None)
    fleet.sessions.update({name: cast("Any", name) for name in "abc"})
    run = Run(RunFolder(tmp_path / "r1"), plan, Bus(), fleet, queue.SimpleQueue(), "me", Source())
    run.shared = dict.fromkeys("abc", "a")
    again._carry(run, "a", backup)
    assert sorted(put) == sent
