"""Living tasks of a run at this moment: where they stand, and what they use."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.wire.fields import (
    Attempt,
    Count,
    Dump,
    Percent,
    Pid,
    Reply,
    Seconds,
    Size,
    TaskName,
    Words,
)
from orchestrator.wire.request import LARGE, Request, expect


class StackProcess(Reply, frozen=True):
    pid: Pid
    argv0: Words
    python: bool
    state: Words
    waits: Words
    cpu: Seconds
    cwd: Words
    how: Words
    text: Dump
    why: Words


class TaskStacks(Reply, frozen=True):
    attempt: Attempt
    task: TaskName
    processes: tuple[StackProcess, ...]
    more: Count


class StacksOf(Reply, frozen=True):
    tasks: tuple[TaskStacks, ...]


class Stacks(Request[StacksOf], frozen=True, kw_only=True):
    """Ask where the living tasks stand; of one attempt, or of some tasks, where those are given."""

    OP = "stacks"
    HEAD = LARGE
    run: str
    attempt: str | None = None
    tasks: Sequence[str] | None = None


class TaskVitals(Reply, frozen=True):
    attempt: Attempt
    task: TaskName
    processes: Count
    cpu: Seconds  # by all its processes, so far
    memory: Size
    gpu_memory: Size | None = None  # None: no GPU was asked for, or none answers
    gpu_busy: Percent | None = None
    tensorflow: bool = False  # its first process has loaded it


class Measured(Reply, frozen=True):
    tasks: tuple[TaskVitals, ...]


class VitalsAsk(Request[Measured], frozen=True, kw_only=True):
    """Ask what the living tasks of an attempt use; `closely`: who has loaded TensorFlow."""

    OP = "vitals"
    run: str
    attempt: str
    gpus: bool = False
    closely: bool = False

    def check(self, reply: Measured) -> None:
        expect(all(task.attempt == self.attempt for task in reply.tasks), "it tells of another attempt")
