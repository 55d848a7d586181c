"""Removal of old validations, and of old run folders unless their runs continue, or may continue."""

import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.events import Outcome, RunEnded, Stamped
from orchestrator.model import Host, Role, TaskId, TaskSpec
from orchestrator.names import RunId
from orchestrator.store import RunFolder
from orchestrator.store.bus import EventLog
from orchestrator.store.known import DAY, Validations, subject
from orchestrator.store.prune import kept, prune
from tests.unit import plans

MONTH = 30 * 86_400.0
ENDED = RunEnded("r", Outcome.SUCCEEDED, 0, 1.0, "", "", (), "")


@pytest.fixture(autouse=True)
def _runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("prune", "known"):
        monkeypatch.setattr(f"orchestrator.store.{module}.runs_root", lambda: tmp_path)


def made(root: Path, run: str, *, days: float, ended: RunEnded | None = ENDED, size: int = 0) -> RunFolder:
    folder = RunFolder(root, RunId(run))
    folder.create(replace(plans.make(plans.host("gpu-1"), plans.host("gpu-2")), run=run))
    folder.debug_log.write_bytes(b"x" * size)
    if ended is not None:
        EventLog(folder)(Stamped(1.0, ended))
    then = time.time() - days * 86_400
    for path in (*folder.path.rglob("*"), folder.path):
        os.utime(path, (then, then))
    return folder


def test_runs_are_removed_oldest_first(tmp_path: Path) -> None:
    for run, days in (("a", 50), ("b", 20), ("c", 10), ("d", 0)):
        made(tmp_path, run, days=days, size=100_000)
    would = prune((), (), older=MONTH, dry=True)
    assert (would.count, would.gone) == (4, ("a",))
    assert (tmp_path / "a").exists()
    assert prune((), (), older=MONTH, dry=False).gone == ("a",)
    everything = prune((), (), older=0.0, dry=False)
    assert everything.gone == ("b", "c")  # d has just ended, and may still be in use
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["d"]


def test_live_and_kept_runs_stay(tmp_path: Path) -> None:
    made(tmp_path, "a", days=50)
    lock = made(tmp_path, "b", days=50).take_lock()
    assert lock is not None
    assert kept() == {"b"}
    assert prune({"a"}, (), older=MONTH, dry=False).gone == ()
    os.close(lock)
    assert prune((), (), older=MONTH, dry=False).gone == ("a", "b")


@pytest.mark.parametrize("end", [None, replace(ENDED, unproven=("gpu-2",))])
def test_an_unrecorded_end_is_confirmed_by_the_hosts(tmp_path: Path, end: RunEnded | None) -> None:
    made(tmp_path, "a", days=50, ended=end)
    silent = prune((), {"gpu-1"}, older=MONTH, dry=False)
    assert (silent.gone, silent.unsure) == ((), ("a",))
    assert prune((), {"gpu-1", "gpu-2"}, older=MONTH, dry=False).gone == ("a",)


def test_an_unfinished_run_with_an_unreadable_plan_stays(tmp_path: Path) -> None:
    """The plan is damaged or of another version: tasks may be alive, and this folder has their logs."""
    folder = made(tmp_path, "a", days=50, ended=None)
    folder.plan.write_text('{"run": "a"')
    os.utime(folder.plan, (1.0, 1.0))
    found = prune((), {"gpu-1", "gpu-2"}, older=MONTH, dry=False)
    assert (found.gone, found.unsure) == ((), ("a",))


def test_abandoned_launches_and_half_removed_folders_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / ".gone-b" / "logs").mkdir(parents=True)
    os.utime(tmp_path / "a", (1.0, 1.0))
    assert prune((), (), older=MONTH, dry=False).gone == ("a",)
    assert list(tmp_path.iterdir()) == []
    tmp_path.rmdir()
    assert prune((), (), older=MONTH, dry=False).count == 0


SPEC = TaskSpec(TaskId(Role.WORKER, 0), "a", 2222, ("python3", "-m", "worker_entry"), {"A": "b"})
HOST = Host("a", "a", "10.0.0.1")
OTHER = replace(HOST, ssh="b")


def test_a_different_subject_has_its_own_record() -> None:
    plain = subject(SPEC, "ab", "st")
    others = [
        subject(replace(SPEC, argv=(*SPEC.argv, "--epochs=2")), "ab", "st"),
        subject(replace(SPEC, env={"A": "c"}), "ab", "st"),
        subject(replace(SPEC, setup="module load x"), "ab", "st"),
        subject(SPEC, "cd", "st"),
        subject(SPEC, "ab", "changed"),
    ]
    assert len({plain, *others}) == 1 + len(others)
    assert subject(SPEC, "ab", "st") == plain


def test_an_expired_or_future_record_is_ignored(tmp_path: Path) -> None:
    memory = Validations(tmp_path)
    for seconds in (-DAY - 1, 60.0):
        memory.write(HOST, "s")
        (path,) = tmp_path.iterdir()
        os.utime(path, (time.time() + seconds,) * 2)
        assert memory.age(HOST, "s") is None
        memory.write(OTHER, "s")
        assert memory.age(HOST, "s") is None
        assert len(list(tmp_path.iterdir())) == 1
        memory.forget(OTHER)
