"""Damaged runs, a short version of scripts/corrupt."""

from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from tests import corruption, verbs


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> corruption.Ground:
    return corruption.Ground(tmp_path_factory.mktemp("corrupt"))


@pytest.mark.parametrize("seed", range(4))
def test_verbs_on_damaged_runs(ground: corruption.Ground, seed: int) -> None:
    wrong = [found for found in corruption.play(ground, seed, 4) if found is not None]
    assert not wrong, "\n".join(map(str, wrong))


def test_the_tasks_of_a_damaged_run_are_ended(ground: corruption.Ground) -> None:
    wrong = [found for found in corruption.play_alive(ground, 5) if found is not None]
    assert not wrong, "\n".join(map(str, wrong))


def test_a_run_whose_events_were_emptied_is_stopped_with_0(ground: corruption.Ground, tmp_path: Path) -> None:
    """Its tasks had failed: that is the run's outcome, not the result of the stop."""
    run = ground.launch(tmp_path, "fails.py", status=ExitStatus.RUN_FAILED)
    folder = tmp_path / "orchestrate" / "runs" / run
    (folder / "events.jsonl").write_bytes(b"")
    stop = verbs.call(["stop", run], ground.project, tmp_path)
    assert stop.status == ExitStatus.OK, stop
