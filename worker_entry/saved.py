"""What is left after training: the SavedModel, and the proof that everything saved holds the same model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker_entry import models, scoring
from worker_entry.backup import Found, newest
from worker_entry.failure import ExpectedError
from worker_entry.job import Job, Score, Trained
from worker_entry.options import folder

CLOSE = 1e-4  # the order in which losses are added up differs between one device and several


@contextmanager
def exported(job: Job, trained: Trained) -> Iterator[Path | None]:
    """The SavedModel, in the folder that was asked for; on other tasks in one that goes away.

    Saving takes part of every task (a leader alone would wait for ever), but one folder has one writer.
    """
    asked = folder(job.options.export_dir)
    if asked is None:
        yield None
        return
    own = asked if job.cluster.is_leader else Path(tempfile.mkdtemp(prefix="worker_entry-export-"))
    try:
        trained.network.model.save(own, save_format="tf")
        if job.cluster.is_leader:
            print(f"SavedModel in {own}")
        yield own
    finally:
        if own != asked:
            shutil.rmtree(own, ignore_errors=True)


def verify(job: Job, trained: Trained, saved_model: Path | None) -> None:
    """Load what was saved, with and without the strategy; raises unless it scores as the trained model."""
    network = trained.network
    with job.strategy.scope():
        scoring.compiled(network.model, network)
    expected = scoring.of(job, network)
    for what, model, shared in _loaded(job, saved_model):
        if shared:
            score = scoring.of_model(model, job.source, job.global_batch)
        else:
            score = scoring.of_model(model, job.source, job.options.batch_size)
        _compare(what, score, expected)


def _loaded(job: Job, saved_model: Path | None) -> Iterator[tuple[str, Any, bool]]:
    """Each thing saved: what it is, the model loaded from it, and whether the strategy holds that."""

    def in_scope(make: Callable[[], Any]) -> Any:
        with job.strategy.scope():
            return make()

    def plain() -> models.Network:
        return models.build(job.options, job.source)

    def of_checkpoint(found: Found) -> Any:
        network = plain()
        tf.train.Checkpoint(model=network.model).restore(found.path).expect_partial()
        return scoring.compiled(network.model, network)

    def of_saved_model() -> Any:
        return scoring.compiled(tf.keras.models.load_model(saved_model, compile=False), plain())

    found = newest(job.folder) if job.folder is not None else None
    if found is not None:
        yield "the latest checkpoint, without a strategy", of_checkpoint(found), False
        if not job.asynchronous:
            yield (
                "the latest checkpoint, in the strategy's scope",
                in_scope(lambda: of_checkpoint(found)),
                True,
            )
    if saved_model is not None:
        yield "the SavedModel, without a strategy", of_saved_model(), False
        if not job.asynchronous:
            yield "the SavedModel, in the strategy's scope", in_scope(of_saved_model), True


def _compare(what: str, score: Score, expected: Score) -> None:
    if abs(score.loss - expected.loss) > CLOSE or abs(score.accuracy - expected.accuracy) > CLOSE:
        raise ExpectedError(
            f"{what} is not the trained model",
            why=f"loss {score.loss:.6f} and accuracy {score.accuracy:.4f}, but trained were"
            f" {expected.loss:.6f} and {expected.accuracy:.4f}",
        )
    print(f"verified: {what}: test loss {score.loss:.4f}, test accuracy {score.accuracy:.4f}")
