"""How much of its time a task of a synchronous gang waits for the others: whoever waits least holds them up.

A step ends for all at once, when the gradients of all have been added up. So what tells the tasks apart is
the moment at which each has its own gradients: until then it reads and computes, from then on it waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import tensorflow as tf

from worker_entry.job import Job

_ODD = 5.0  # times the usual step: an evaluation or a checkpoint was between


class Waits:
    def __init__(self, *, on: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.on = on
        self._clock = clock
        self._ended: float | None = None  # the last step
        self._computed = 0.0
        self._steps: list[tuple[float, float]] = []  # seconds, and of them those of waiting

    def after(self, gradients: Sequence[Any]) -> None:
        """To be called on a replica, while its step is traced: note from then on when it has these."""
        if self.on:
            with tf.control_dependencies([one for one in gradients if one is not None]):
                tf.numpy_function(self.computed, [], [])

    def computed(self) -> None:
        """This task's part of the step is done; called in a thread of TensorFlow's."""
        self._computed = self._clock()

    def ended(self) -> None:
        """The step is."""
        now = self._clock()
        if self._ended is not None and self._ended < self._computed <= now:
            self._steps.append((now - self._ended, now - self._computed))
        self._ended = now

    def share(self) -> float | None:
        """Of the time since this was asked last; None where it is not known."""
        steps, self._steps = self._steps, []
        if not steps:
            return None
        usual = _ODD * median(seconds for seconds, _ in steps)
        counted = [step for step in steps if step[0] <= usual]
        return sum(waited for _, waited in counted) / sum(seconds for seconds, _ in counted)


def of(job: Job) -> Waits:
    """For a task that has somebody to wait for, and computes where its calls return when they are done."""
    gang = job.cluster.distributed and not job.asynchronous
    return Waits(on=gang and not tf.config.list_logical_devices("GPU") and not job.options.tpu)


def watch(waits: Waits, optimizer: Any) -> None:
    """Have an optimizer that `fit` calls note when it is given the gradients."""
    if not waits.on:
        return
    apply = optimizer.apply_gradients

    def noted(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        waits.after([gradient for gradient, _ in pairs])
        return apply(pairs, *args, **kwargs)

    optimizer.apply_gradients = noted
