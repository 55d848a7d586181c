"""Kills of the kernel for want of memory: its counter, before a task and after it.

cgroup v2   <group>/memory.events: oom_kill N, of the group that the task is in
cgroup v1   <group>/memory.oom_control, the same; in a container its own group is the top
machine     /proc/vmstat: oom_kill N, whoever was killed, where no group counts
"""

from __future__ import annotations

import os
from typing import Iterator

from ..base import procs

_EVERY = 15.0  # seconds between two looks; a kill is told for one to two of these


class Memory:
    """The counter for this process, from now on. `root` is `/` but in tests."""

    def __init__(self, root: str = "/") -> None:
        self._file = next(filter(os.path.exists, _counters(root)), os.path.join(root, "proc/vmstat"))
        self._before = self._last = self._count()  # two looks ago, one look ago
        self._due = 0.0

    def look(self, now: float) -> None:
        """Now and then, so that only those kills are told that came shortly before the end."""
        if now >= self._due:
            self._due = now + _EVERY
            self._before, self._last = self._last, self._count()

    def kills(self) -> int:
        """How many were killed shortly before now."""
        return max(0, self._count() - self._before)

    def _count(self) -> int:
        for line in procs.text(self._file).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
        return 0


def _counters(root: str) -> Iterator[str]:
    for line in procs.text(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, kinds, group = line.split(":", 2)
        if not kinds:
            yield os.path.join(root, "sys/fs/cgroup", group.lstrip("/"), "memory.events")
        elif "memory" in kinds.split(","):
            for place in (group.lstrip("/"), ""):
                yield os.path.join(root, "sys/fs/cgroup/memory", place, "memory.oom_control")
