"""Connections that lead to others: each opened by whoever comes first, and shared by all behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from orchestrator.errors import HostError
from orchestrator.ssh.attempt import Line
from orchestrator.ssh.problems import explain
from orchestrator.ssh.target import Deadline, Target

Open: TypeAlias = Callable[[str, Target, Deadline], Line]  # host it is for, target, deadline


@dataclass
class _Bastion:
    lock: threading.Lock = field(default_factory=threading.Lock)
    line: Line | None = None
    error: HostError | None = None
    failed_at: float = float("-inf")


class Bastions:
    """One connection per chain of jumps; one that is lost is opened again. Thread-safe."""

    def __init__(self, open_line: Open) -> None:
        self._open_line = open_line
        self._lock = threading.Lock()
        self._known: dict[tuple[Target, ...], _Bastion] = {}

    def at_the_end_of(self, jumps: tuple[Target, ...], host: str, deadline: Deadline) -> Line | None:
        """The connection to the last of the jumps; raise HostError, worded for the host behind it."""
        if not jumps:
            return None
        asked = time.monotonic()
        with self._lock:
            bastion = self._known.setdefault(jumps, _Bastion())
        with bastion.lock:
            if bastion.line and bastion.line.transport.is_active():
                return bastion.line
            if bastion.failed_at < asked:  # else it failed while we waited for our turn
                self._open(bastion, jumps, host, deadline)
            if bastion.error:
                raise _for_host(bastion.error, host, jumps[-1]) from bastion.error
            return bastion.line

    def close(self) -> None:
        with self._lock:
            bastions, self._known = list(self._known.values()), {}
        for bastion in reversed(bastions):
            if bastion.line:
                bastion.line.hang_up()

    def _open(self, bastion: _Bastion, jumps: tuple[Target, ...], host: str, deadline: Deadline) -> None:
        if bastion.line:
            bastion.line.hang_up()
        bastion.line = bastion.error = None
        target = replace(jumps[-1], jumps=jumps[:-1])
        try:
            bastion.line = self._open_line(host, target, deadline)
        except Exception as error:
            bastion.error = explain(error, host, target)
            if bastion.error is not error:
                bastion.error.__cause__ = error
            bastion.failed_at = time.monotonic()


def _for_host(error: HostError, host: str, bastion: Target) -> HostError:
    """The bastion's failure as this host's; hosts behind it fold into one message."""
    what = f"cannot be reached: its bastion {bastion.alias} {error.what}"
    return HostError(host, what, kind=error.kind, why=error.why, hint=error.hint)
