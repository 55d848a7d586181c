"""The whole job on one page: role, data, strategy, loop, result."""

from __future__ import annotations

import math

import tensorflow as tf

from worker_entry import (
    compat,
    coordinator_loop,
    custom_loop,
    digest,
    evaluator,
    fit,
    leaving,
    saved,
    schedule,
    serving,
    strategy,
)
from worker_entry.choice import Chosen, choose
from worker_entry.cluster import Cluster
from worker_entry.data import find
from worker_entry.failure import EXIT_OK, EXIT_SAVED, DivergedError
from worker_entry.job import Job, Trained
from worker_entry.options import Options
from worker_entry.report import Reporter
from worker_entry.stopping import CoordinationService, Saved


def run(options: Options, cluster: Cluster, reporter: Reporter) -> int:
    """Do this task's part; returns the exit status."""
    compat.leave_keras_alone()
    tf.keras.utils.set_random_seed(options.seed)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    if cluster.task.kind == "evaluator":
        return evaluator.run(options, cluster, reporter)
    chosen = choose(options.strategy, cluster, len(tf.config.list_physical_devices("GPU")), options.tpu)
    if chosen.name == "parameter-server" and cluster.task != cluster.leader:
        return serving.serve(cluster, options, reporter)
    return _train(options, cluster, reporter, chosen)


def _train(options: Options, cluster: Cluster, reporter: Reporter, chosen: Chosen) -> int:
    # Data before the strategy: a task that cannot read them must not leave its peers waiting.
    source = find.source(options, reporter)
    reporter.startup.done("data")
    if options.mixed_precision:
        tf.keras.mixed_precision.set_global_policy(f"mixed_{options.mixed_precision}")
    made = strategy.make(chosen, options, cluster)
    reporter.startup.done("strategy")
    replicas = made.num_replicas_in_sync
    plan = schedule.resolve(
        options.epochs, options.steps_per_epoch, source.train_examples, options.batch_size * replicas
    )
    job = Job(options, cluster, made, source, plan, reporter)
    print(f"strategy: {chosen.name} ({chosen.why}), {replicas} replica(s)")
    print(f"data: {source.name} ({source.note}), global batch {job.global_batch}")
    print(f"length: {plan.epochs} epochs of {plan.steps_per_epoch} steps ({plan.why})")
    status = _work(job)
    if chosen.name == "multi-worker" and cluster.distributed:
        leaving.together(str(cluster.task), [*map(str, cluster.trainers)], CoordinationService())
    return status


def _work(job: Job) -> int:
    try:
        trained = _loop(job)
    except Saved as stopped:
        print(stopped)
        return EXIT_SAVED
    _finish(job, trained)
    return EXIT_OK


def _loop(job: Job) -> Trained:
    if job.options.loop == "fit":
        return fit.run(job)
    return coordinator_loop.run(job) if job.asynchronous else custom_loop.run(job)


def _check_losses(job: Job, trained: Trained) -> None:
    losses = {"loss": trained.loss, "test loss": trained.score.loss}
    for name, value in losses.items():
        if value is not None and not math.isfinite(value) and not job.options.allow_nan:
            raise DivergedError(name, value)


def _finish(job: Job, trained: Trained) -> None:
    _check_losses(job, trained)
    with saved.exported(job, trained) as saved_model:
        if job.options.verify:
            saved.verify(job, trained, saved_model)
    weights = digest.of_weights(trained.network.model.get_weights())
    print(f"test accuracy {trained.score.accuracy:.4f}, test loss {trained.score.loss:.4f}")
    print(f"weights digest {weights}")
    job.reporter.result(
        digest=weights,
        loss=trained.loss,
        accuracy=trained.accuracy,
        test_loss=trained.score.loss,
        test_accuracy=trained.score.accuracy,
        dataset=job.source.name,
        note=job.source.note,
        steps=trained.steps,
        steps_per_second=round(trained.steps_per_second, 3),
        seconds=round(trained.seconds, 3),
        startup=job.reporter.startup.seconds,
    )
