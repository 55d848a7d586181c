"""On SIGTERM: save at the end of a step, then exit, at the same step on all tasks.

A synchronous step ends on no task before every task has begun it. So the first task that receives a request,
having ended step s, writes step s + 1 to a board that all can read, and does not begin that step before
every task has read it; then all stop there. A TERM that reaches the tasks at different steps cannot separate
them.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import Protocol

STEP = "worker_entry/stop"
NEVER = "never"


class Saved(Exception):  # noqa: N818  # no error: the way out of a training loop
    """Training stopped as requested, at a step that is saved."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped by SIGTERM and saved at step {step}; start again to continue")
        self.step = step


class Board(Protocol):
    """Values that all tasks can read; each is written once."""

    def put(self, key: str, value: str) -> bool:
        """Write a value; return False if the key already had one."""

    def get(self, key: str) -> str:
        """Wait for the key's value and return it."""


class Stop:
    """Determines the step to stop at; `tasks` are those that step together, including this one."""

    def __init__(self, own: str, tasks: Sequence[str], board: Board) -> None:
        self._own = own
        self._tasks = tuple(tasks)
        self._board = board
        self._asked = False
        self._at: int | None = None
        self._reader = threading.Thread(target=self._read, daemon=True, name="stop-step")
        if len(self._tasks) > 1:
            self._reader.start()

    def obey_sigterm(self) -> None:
        """Make SIGTERM request a stop; called after the strategy is created, which resets the handler."""
        signal.signal(signal.SIGTERM, lambda _number, _frame: self.ask())

    def ask(self) -> None:
        self._asked = True

    def now(self, step: int) -> bool:
        """Return True if this step is the last; every task calls it at the end of every step."""
        if len(self._tasks) <= 1:
            return self._asked
        # If another task was faster, its step counts, and it waits for us before that step can end.
        if self._asked and self._at is None and self._board.put(STEP, str(step + 1)):
            for task in self._tasks:
                self._board.get(f"{STEP}/{task}")
        if self._at is not None and step > self._at:
            raise RuntimeError(f"step {step} ended after {self._at}, the last one: tasks are out of step")
        return step == self._at

    def close(self) -> None:
        """Signal that no step follows: let the reading thread end, so that the process can."""
        if self._reader.is_alive():
            self._board.put(STEP, NEVER)
            self._reader.join()

    def _read(self) -> None:
        try:
            value = self._board.get(STEP)
            if value != NEVER:
                self._at = int(value)
                self._board.put(f"{STEP}/{self._own}", "read")
        except Exception as error:
            # The cluster is failing: the training thread sees the same error and reports it better.
            print(f"no stop step: {type(error).__name__}", flush=True)


class CoordinationService:
    """The board of a cluster; TensorFlow has it without a public name."""

    def put(self, key: str, value: str) -> bool:
        import tensorflow as tf
        from tensorflow.python.eager import context

        try:
            context.context().set_config_key_value(key, value)
        except tf.errors.AlreadyExistsError:
            return False
        return True

    def get(self, key: str) -> str:
        from tensorflow.python.eager import context

        value = context.context().get_config_key_value(key)
        return value.decode() if isinstance(value, bytes) else str(value)


END = "worker_entry/end"


def leave_together(own: str, tasks: Sequence[str], board: Board | None = None) -> None:
    """Return when all `tasks`, including this one, have arrived; a missing task is not an error here.

    The leader's process runs TensorFlow's coordination service: if it ends while another task still exports
    or evaluates, that task prints errors about a lost cluster, or fails.
    """
    try:
        board = board or CoordinationService()
        board.put(f"{END}/{own}", "here")
        for task in tasks:
            board.get(f"{END}/{task}")
    except Exception as error:
        print(f"another task failed: {type(error).__name__}", flush=True)
