"""Stopped or killed training resumes as if nothing had happened: no extra step, bit-identical results."""

import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tf.gang import Gang, Trainee, compare, once, words, worker_entry

STEPS = 48
SAVED = 75
TRAINING = words(
    "--dataset digits --optimizer adam --batch-size 16 --epochs 4 --steps-per-epoch 12 --deterministic"
)
TWO = {"worker": 2}
EVERY_FIFTH = words("--loop custom --save-every 5")


def gang(
    folder: Path, checkpoints: Callable[[str], Path], *more: str, jobs: dict[str, int], attempt: int = 1
) -> Gang:
    def own(task: str) -> Sequence[str]:
        return ["--checkpoint-dir", str(checkpoints(task))]

    env = {"ORCHESTRATE_ATTEMPT": str(attempt)}
    return Gang(folder, worker_entry(*TRAINING, *more), jobs=jobs, per_task=own, env=env)


@dataclass(frozen=True)
class Uninterrupted:
    """Two tasks that ran all steps without interruption."""

    digest: str
    checkpoints: Path

    @property
    def ends(self) -> list[tuple[int, str]]:
        return [(STEPS, self.digest)] * 2


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    with once(tmp_path_factory, "uninterrupted") as folder:
        kept = folder / "digest"
        if not kept.exists():
            with gang(folder, lambda _task: folder / "checkpoints", jobs=TWO) as tasks:
                (digest,) = {str(result["digest"]) for result in tasks.finish()}
            kept.write_text(digest)
        return Uninterrupted(kept.read_text(), folder / "checkpoints")


def step_of(task: Trainee, did: str) -> int:
    found = re.search(rf"{did} at step (\d+)", task.text)
    assert found, task.text[-2000:]
    return int(found[1])


@pytest.mark.soak
def test_term_saves_a_step_and_the_next_start_resumes_after_it(
    tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    def shared(_task: str) -> Path:
        return tmp_path / "checkpoints"

    with gang(tmp_path / "first", shared, jobs=TWO) as first:
        first.until("the first step", lambda: first["worker/1"].step > 0)
        first["worker/1"].signal(signal.SIGTERM)
        assert first.wait(patience=60) == {"worker/0": SAVED, "worker/1": SAVED}, first.tails()
        step = step_of(first["worker/0"], "saved")
        assert step_of(first["worker/1"], "saved") == step < STEPS
    with gang(tmp_path / "second", shared, jobs=TWO) as second:
        results = second.finish()
        assert {step_of(task, "continues") for task in second.tasks.values()} == {step + 1}
        assert [(one["steps"], one["digest"]) for one in results] == uninterrupted.ends


def test_training_resumes_from_the_other_task_s_copy_after_losing_the_leader_s_machine(
    tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    def own(task: str) -> Path:
        return tmp_path / f"disk-of-{task.replace('/', '-')}"

    with gang(tmp_path / "first", own, *EVERY_FIFTH, jobs=TWO) as first:
        kept = own("worker/1") / "worker-1"
        first.until("a checkpoint", (kept / "checkpoint").exists)
        for task in first.tasks.values():
            task.kill()
    shutil.rmtree(own("worker/0"))
    with gang(tmp_path / "second", own, *EVERY_FIFTH, jobs=TWO) as second:
        results = second.finish()
        at = {step_of(task, "continues") for task in second.tasks.values()}
        assert len(at) == 1
        assert at.pop() % 5 == 1, "not after a multiple of --save-every"
        assert [(one["steps"], one["digest"]) for one in results] == uninterrupted.ends
    # Everything is done: a third start trains nothing and reports the same.
    with gang(tmp_path / "third", own, jobs=TWO) as third:
        results = third.finish()
        assert [(one["steps"], one["digest"]) for one in results] == uninterrupted.ends
        assert all(result["loss"] is None and result["test_accuracy"] > 0 for result in results)


@pytest.mark.soak
def test_a_single_task_survives_kill_and_term(tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    """The first start is killed during or between saves, the second is stopped, and the third finishes."""

    def folder(_task: str) -> Path:
        return tmp_path / "checkpoints"

    options = words("--strategy mirrored --devices cpu:0,cpu:1 --loop custom --save-every 1")
    half = words("--epochs 2")  # however late the kill arrives, some steps remain
    with gang(tmp_path / "first", folder, *options, *half, jobs={}) as first:
        kept = folder("") / "worker-0"
        first.until("a checkpoint", (kept / "checkpoint").exists)
    with gang(tmp_path / "second", folder, *options, jobs={}, attempt=2) as second:
        task = second["alone"]
        second.until("its restore", lambda: task.records("ready") != [])
        task.signal(signal.SIGTERM)
        assert second.wait() == {"alone": SAVED}, second.tails()
        begun, step = step_of(task, "continues"), step_of(task, "saved")
        assert 1 < begun <= step < STEPS
    with gang(tmp_path / "third", folder, *options, jobs={}) as third:
        (result,) = third.finish()
        assert step_of(third["alone"], "continues") == step + 1
        assert result["steps"] == STEPS
    found = compare(uninterrupted.checkpoints, folder(""))
    assert found["steps"] == [STEPS, STEPS]
    assert found["apart"] < 1e-5
