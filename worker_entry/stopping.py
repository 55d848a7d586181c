"""SIGTERM means: save at the end of a step, then exit. All tasks must mean the same step.

A synchronous step ends on no task before every task has begun it. So the first task that is asked, having
ended step s, names step s + 1 in the coordination service and does not begin it before every other task has
read that; then all stop there. A TERM that reaches the tasks at different steps cannot part them.
TensorFlow's own PreemptionCheckpointHandler works alike, but does nothing on some clouds' machines.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

from worker_entry.cluster import Cluster

PREFIX = "worker_entry/stop"
NEVER = "never"


class Saved(Exception):  # noqa: N818  # no error: the way out of a training loop
    """Training stopped as asked, at a step that is saved."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped by SIGTERM and saved at step {step}; start again to go on")
        self.step = step


class Stop:
    """Whether the step that just ended is the last one. To be made after the strategy, which takes TERM."""

    def __init__(self, cluster: Cluster, *, synchronous: bool) -> None:
        self._asked = False
        self._at: int | None = None
        self._tasks = cluster.trainers if synchronous and cluster.distributed else ()
        self._own = str(cluster.task)
        signal.signal(signal.SIGTERM, self._on_term)
        self._reader = threading.Thread(target=self._read, daemon=True, name="stop-step")
        if self._tasks:
            self._reader.start()

    def _on_term(self, _number: int, _frame: Any) -> None:
        self._asked = True

    def now(self, step: int) -> bool:
        """To be asked at the end of every step, by every task."""
        if not self._tasks:
            return self._asked
        if self._asked and self._at is None:
            self._announce(step + 1)
        if self._at is not None and step > self._at:
            raise RuntimeError(
                f"step {step} ended after the step to stop at, {self._at}: tasks are out of step"
            )
        return step == self._at

    def close(self) -> None:
        """No step comes any more: let the reader end, or the process may not."""
        if self._reader.is_alive():
            _put(PREFIX, NEVER)
            self._reader.join()

    def _announce(self, step: int) -> None:
        # When another task was faster, its step holds; the reader hears of it before that step can end.
        if _put(PREFIX, str(step)):
            for task in self._tasks:
                _get(f"{PREFIX}/{task}")

    def _read(self) -> None:
        try:
            value = _get(PREFIX)
            if value != NEVER:
                self._at = int(value)
                _put(f"{PREFIX}/{self._own}", "read")
        except Exception as error:
            # The cluster is breaking: the training thread meets the same error and says it better.
            print(f"no stop step: {type(error).__name__}", flush=True)


def _put(key: str, value: str) -> bool:
    """False when the key had a value already."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    try:
        context.context().set_config_key_value(key, value)
    except tf.errors.AlreadyExistsError:
        return False
    return True


def _get(key: str) -> str:
    """Wait for a key's value."""
    from tensorflow.python.eager import context

    value = context.context().get_config_key_value(key)
    return value.decode() if isinstance(value, bytes) else str(value)
