"""A run's tasks at this moment, as its keeper last saw them. Pure.

Unlike events this is not a history: a keeper replaces the one before, and only while a viewer asks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from msgspec import Struct

from orchestrator.run.fitlines import Fit


class Vital(Struct, frozen=True):
    """One task; what is not known is None."""

    heard: float  # when it last printed or reported anything, seconds since the epoch
    fit: Fit | None = None
    cpu: float | None = None  # processors that it keeps busy
    memory: int | None = None  # bytes
    gpu_memory: int | None = None
    gpu_busy: int | None = None  # percent


class Vitals(Struct, frozen=True):
    """All tasks of one attempt, by name."""

    at: float = 0.0  # seconds since the epoch
    attempt: str = ""
    tasks: Mapping[str, Vital] = {}

    def of(self, attempts: Collection[str]) -> Vitals:
        """These, where they are of one of these attempts; else nothing."""
        return self if self.attempt in attempts else Vitals()

    def quiet(self, now: float) -> float:
        """Seconds since any task was heard of; 0 where none is known."""
        return max(0.0, now - max((one.heard for one in self.tasks.values()), default=now))


def encode(vitals: Vitals) -> bytes:
    return msgspec.json.encode(vitals)


def decode(data: bytes) -> Vitals | None:
    """The inverse of `encode`; None for anything else."""
    try:
        return msgspec.json.decode(data, type=Vitals)
    except (msgspec.DecodeError, RecursionError):
        return None
