"""The whole job on one page: role, data, strategy, loop, result."""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path

import tensorflow as tf

from worker_entry import fit, loops, schedule, serving, stopping, strategy
from worker_entry import job as jobs
from worker_entry.cluster import Cluster, choose
from worker_entry.data import find
from worker_entry.failure import EXIT_OK, EXIT_SAVED, DivergedError, UsageError
from worker_entry.job import Job, Trained
from worker_entry.options import Options, folder
from worker_entry.report import Reporter


def run(options: Options, cluster: Cluster, reporter: Reporter) -> int:
    """Run this task's part; return the exit status."""
    _leave_keras_alone()
    tf.keras.utils.set_random_seed(options.seed)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    if cluster.task.kind == "evaluator":
        raise UsageError("worker_entry cannot run as an evaluator", why="it evaluates during training")
    gpus = len(tf.config.list_physical_devices("GPU"))
    chosen = choose(options.strategy, cluster, gpus, options.tpu)
    if chosen.name == "parameter-server" and cluster.task != cluster.leader:
        return serving.serve(cluster, options, reporter)
    # Data before the strategy: a task that cannot read them must not keep its peers waiting.
    source = find(options, reporter)
    made = strategy.make(chosen, options, cluster)
    replicas = made.num_replicas_in_sync
    batch, examples = options.batch_size * replicas, source.train_examples
    plan = schedule.resolve(options.epochs, options.steps_per_epoch, examples, batch)
    job = Job(options, cluster, made, source, plan, reporter)
    print(f"strategy: {chosen.name} ({chosen.why}), {replicas} replica(s)")
    print(f"data: {source.name} ({source.note}), global batch {job.global_batch}")
    print(f"length: {plan.epochs} epochs of {plan.steps_per_epoch} steps ({plan.why})")
    status = _work(job)
    if chosen.name == "multi-worker" and cluster.distributed:
        stopping.leave_together(str(cluster.task), [*map(str, cluster.trainers)])
    return status


def _leave_keras_alone() -> None:
    """Mark tf_keras as a library: TensorFlow 2.16 would convert all of it, for 10 to 30 s per task."""
    from tensorflow.python.autograph.core import config

    if not any(rule.matches("tf_keras") for rule in config.CONVERSION_RULES):
        config.CONVERSION_RULES = (config.DoNotConvert("tf_keras"), *config.CONVERSION_RULES)


def _work(job: Job) -> int:
    try:
        trained = fit.run(job) if job.options.loop == "fit" else loops.run(job)
    except stopping.Saved as stopped:
        print(stopped)
        return EXIT_SAVED
    score = trained.score
    for name, value in {"loss": trained.loss, "test loss": score.loss if score else None}.items():
        if value is not None and not math.isfinite(value):
            raise DivergedError(name, value)
    _export(job, trained)
    weights = jobs.digest(trained.model.get_weights())
    if score is not None:
        print(f"test accuracy {score.accuracy:.4f}, test loss {score.loss:.4f}")
    print(f"weights digest {weights}")
    job.reporter.result(
        digest=weights,
        loss=trained.loss,
        accuracy=trained.accuracy,
        test_loss=score.loss if score else None,
        test_accuracy=score.accuracy if score else None,
        dataset=job.source.name,
        note=job.source.note,
        steps=trained.steps,
        steps_per_second=round(trained.steps_per_second, 3),
        seconds=round(trained.seconds, 3),
    )
    return EXIT_OK


def _export(job: Job, trained: Trained) -> None:
    """Write the SavedModel to the requested folder; other tasks write to one that is removed.

    Saving involves every task (a leader alone would wait forever), but one folder has one writer.
    """
    asked = folder(job.options.export_dir)
    if asked is None:
        return
    own = asked if job.cluster.is_leader else Path(tempfile.mkdtemp(prefix="worker_entry-export-"))
    try:
        trained.model.save(own, save_format="tf")
        if job.cluster.is_leader:
            print(f"SavedModel in {own}")
    finally:
        if own != asked:
            shutil.rmtree(own, ignore_errors=True)
