"""Which hosts get the backup before another attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.fleet import Fleet
from orchestrator.names import RunId
from orchestrator.phases.context import CodeSource, Inbox, Run
from orchestrator.phases.restart import again as phase
from orchestrator.store import RunFolder
from orchestrator.store.bus import Bus
from orchestrator.sync import backups
from orchestrator.sync.contents import Contents
from orchestrator.sync.files import Fetched
from orchestrator.sync.sending import Delivery
from tests.unit.plans import host, make


def of_three(tmp_path: Path, connected: str) -> Run:
    plan = make(host("a"), host("b"), host("c"))
    fleet = Fleet(cast("Any", None), lambda _: None)
    fleet.sessions.update({name: cast("Any", name) for name in connected})
    return Run(RunFolder(tmp_path, RunId("r1")), plan, Bus(), fleet, Inbox(), "me", CodeSource())


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

    def take(session: str, _: Contents, remote: str, *, mutable: bool) -> Delivery:
        assert mutable
        put.append((session, remote))
        return Delivery(1, 0.0, reused=False)

    monkeypatch.setattr(backups, "fetch", lambda *_: Fetched(1, 1, 0.0))
    monkeypatch.setattr(backups, "push", take)
    run = of_three(tmp_path, "abc")
    (run.folder.path / "backup").mkdir(parents=True)
    run.staged.shared = dict.fromkeys("abc", "a")
    phase.carry_backup(run, "a", backup)
    assert sorted(put) == sent


@pytest.mark.parametrize(
    ("connected", "before", "now", "known"),
    [
        ("abc", {}, {"a": "a", "b": "a"}, {"a": "a", "b": "a"}),
        ("bc", {"a": "a", "b": "a", "c": "a"}, {"b": "b", "c": "b"}, {"a": "b", "b": "b", "c": "b"}),
        ("bc", {"a": "a", "b": "a"}, {}, {"a": "b"}),  # a group of one is none
        ("bc", {"a": "a", "x": "a"}, {"b": "b", "c": "b"}, {"b": "b", "c": "b"}),
    ],
)
def test_whose_disk_a_lost_host_saw_stays_known(
    tmp_path: Path, connected: str, before: dict[str, str], now: dict[str, str], known: dict[str, str]
) -> None:
    run = of_three(tmp_path, connected)
    run.staged.shared = before
    assert phase.shared_now(run, now) == known


@pytest.mark.parametrize(
    ("connected", "shared", "made", "emptied"),
    [
        ("abc", {}, set(), False),
        ("abc", {}, {"b"}, False),
        ("abc", {}, {"a"}, True),
        ("abc", {"a": "a", "b": "a"}, {"b"}, True),  # one of them was asked first
        ("bc", {"a": "a", "b": "a"}, {"b"}, False),  # it is lost
    ],
)
def test_a_host_whose_folder_had_to_be_made_again_has_removed_nothing(
    tmp_path: Path, connected: str, shared: dict[str, str], made: set[str], emptied: bool
) -> None:
    run = of_three(tmp_path, connected)
    run.staged.shared, run.staged.made = shared, made
    assert phase._emptied(run, "a") is emptied
