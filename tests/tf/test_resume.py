"""A training that was stopped or killed goes on as if nothing had happened: no step more, no bit else."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.tf.gang import Gang, Trainee, words, worker_entry

STEPS = 48
SAVED = 75
TRAINING = words(
    "--dataset digits --optimizer adam --batch-size 16 --epochs 4 --steps-per-epoch 12 --deterministic"
)
TWO = {"worker": 2}


def gang(folder: Path, checkpoints: Callable[[str], Path], *more: str, jobs: dict[str, int]) -> Gang:
    def own(task: str) -> Sequence[str]:
        return ["--checkpoint-dir", str(checkpoints(task))]

    return Gang(folder, worker_entry(*TRAINING, *more), jobs=jobs, per_task=own)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of two tasks' weights after all steps."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with gang(folder, lambda _task: folder / "checkpoints", jobs=TWO) as tasks:
        digests = {str(result["digest"]) for result in tasks.finish()}
    assert len(digests) == 1
    return digests.pop()


def stopped_at(task: Trainee) -> int:
    found = re.search(r"saved at step (\d+)", task.text)
    assert found, task.text[-2000:]
    return int(found[1])


def goes_on_at(task: Trainee) -> int:
    found = re.search(r"goes on at step (\d+)", task.text)
    assert found, task.text[-2000:]
    return int(found[1])


@pytest.mark.parametrize(
    ("loop", "termed"),
    [("fit", ["worker/1"]), ("custom", ["worker/0", "worker/1"])],
    ids=["fit, one task", "custom, all tasks"],
)
def test_term_saves_one_step_and_the_next_start_does_the_next(
    tmp_path: Path, uninterrupted: str, loop: str, termed: list[str]
) -> None:
    def shared(_task: str) -> Path:
        return tmp_path / "checkpoints"

    with gang(tmp_path / "first", shared, "--loop", loop, jobs=TWO) as first:
        first.until("the first step", lambda: first["worker/1"].step > 0)
        for name in termed:
            first[name].signal(signal.SIGTERM)
        assert first.wait(patience=60) == {"worker/0": SAVED, "worker/1": SAVED}, first.tails()
        step = stopped_at(first["worker/0"])
        assert stopped_at(first["worker/1"]) == step < STEPS
    with gang(tmp_path / "second", shared, "--loop", loop, jobs=TWO) as second:
        results = second.finish()
        assert {goes_on_at(task) for task in second.tasks.values()} == {step + 1}
        assert [(result["steps"], result["digest"]) for result in results] == [(STEPS, uninterrupted)] * 2


def test_killed_with_the_leaders_machine_lost_it_goes_on_from_what_the_other_kept(
    tmp_path: Path, uninterrupted: str
) -> None:
    def own(task: str) -> Path:
        return tmp_path / f"disk-of-{task.replace('/', '-')}"

    with gang(tmp_path / "first", own, "--save-every", "5", jobs=TWO) as first:
        kept = own("worker/1") / "worker-1"
        first.until("a checkpoint", (kept / "checkpoint").exists)
        for task in first.tasks.values():
            task.kill()
    shutil.rmtree(own("worker/0"))
    with gang(tmp_path / "second", own, "--save-every", "5", jobs=TWO) as second:
        results = second.finish()
        at = {goes_on_at(task) for task in second.tasks.values()}
        assert len(at) == 1
        assert at.pop() % 5 == 1, "not after a multiple of --save-every"
        assert [(result["steps"], result["digest"]) for result in results] == [(STEPS, uninterrupted)] * 2
    # All is done: a third start trains nothing and says the same.
    with gang(tmp_path / "third", own, jobs=TWO) as third:
        results = third.finish()
        assert [(result["steps"], result["digest"]) for result in results] == [(STEPS, uninterrupted)] * 2
        assert all(result["loss"] is None and result["test_accuracy"] > 0 for result in results)


def test_a_freeze_shorter_than_the_heartbeats_is_survived(tmp_path: Path, uninterrupted: str) -> None:
    with gang(tmp_path, lambda _task: tmp_path / "checkpoints", jobs=TWO) as tasks:
        frozen = tasks["worker/1"]
        tasks.until("the first step", lambda: frozen.step > 0)
        frozen.signal(signal.SIGSTOP)
        try:
            # Longer than the 8 to 10 s after which TensorFlow by default gives a task up.
            with pytest.raises(AssertionError, match="not within"):
                tasks.until("", lambda: False, patience=12)
            assert tasks["worker/0"].process.poll() is None, tasks.tails()
        finally:
            frozen.signal(signal.SIGCONT)
        assert [result["digest"] for result in tasks.finish()] == [uninterrupted] * 2


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    def folder(_task: str) -> Path:
        return tmp_path / "checkpoints"

    with gang(tmp_path / "first", folder, "--steps-per-epoch", "1", jobs={}) as first:
        first.finish()
    with gang(tmp_path / "second", folder, "--model", "fashion", jobs={}) as second:
        assert second.wait() == {"alone": 1}
        (error,) = second["alone"].records("error")
        assert "is of another model or optimizer" in error["message"]
