"""The whole job on one page: strategy, data, loop, result."""

from __future__ import annotations

import tensorflow as tf

from worker_entry import compat, custom_loop, digest, fit, schedule, strategy
from worker_entry.cluster import Cluster
from worker_entry.data import choose
from worker_entry.job import Job, Trained
from worker_entry.options import Options
from worker_entry.report import Reporter
from worker_entry.stopping import Saved

LOOPS = {"fit": fit.run, "custom": custom_loop.run}


def run(options: Options, cluster: Cluster, reporter: Reporter) -> bool:
    """Train; False when SIGTERM ended it at a saved step."""
    compat.leave_keras_alone()
    tf.keras.utils.set_random_seed(options.seed)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    # Data before the strategy: a task that cannot read them must not leave its peers waiting.
    source = choose.source(options) if options.validate is None else choose.for_validation(options)
    asked = options.strategy if options.validate is None else "one-device"
    chosen = strategy.choose(asked, cluster, len(tf.config.list_physical_devices("GPU")))
    made = strategy.make(chosen, options, cluster)
    replicas = made.num_replicas_in_sync
    length = (options.epochs, options.steps_per_epoch) if options.validate is None else options.validate
    plan = schedule.resolve(*length, source.train_examples, options.batch_size * replicas)
    job = Job(options, cluster, made, source, plan, reporter)
    print(f"strategy: {type(made).__name__} ({chosen.why}), {replicas} replica(s), task {cluster.task}")
    print(f"data: {source.name} ({source.note}), global batch {job.global_batch}")
    print(f"length: {plan.epochs} epochs of {plan.steps_per_epoch} steps ({plan.why})")
    try:
        trained = LOOPS[options.loop](job)
    except Saved as stopped:
        print(stopped)
        return False
    _finish(job, trained)
    return True


def _finish(job: Job, trained: Trained) -> None:
    weights = digest.of_weights(trained.model.get_weights())
    print(f"test accuracy {trained.test_accuracy:.4f}, test loss {trained.test_loss:.4f}")
    print(f"weights digest {weights}")
    job.reporter.result(
        digest=weights,
        loss=trained.loss,
        accuracy=trained.accuracy,
        test_accuracy=trained.test_accuracy,
        dataset=job.source.name,
        note=job.source.note,
        steps=trained.steps,
        steps_per_second=round(trained.steps_per_second, 3),
        seconds=round(trained.seconds, 3),
    )
