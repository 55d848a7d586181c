"""Kills of the kernel for want of memory: its counters, before a task and after it.

cgroup v1   <memory>/<path>/memory.oom_control: oom_kill N, memory.limit_in_bytes
cgroup v2   <root>/<path>/memory.events: oom_kill N, memory.max
machine     /proc/vmstat: oom_kill N, whoever was killed

A group counts its own, whatever limit was met; the machine counts others' too, so it is asked only where no
group counts.
"""

from __future__ import annotations

import os
import time
from typing import Optional, Tuple

from ..base import procs

Counts = Tuple[Optional[int], Optional[int]]  # of our group, and of the machine

_EVERY = 15.0  # seconds between two looks; a kill is told for one to two of these
_NO_LIMIT = 1 << 60  # v1 writes the largest number of pages instead


class Memory:
    """The counters of the group that this process is in, from now on. `root` is `/` but in tests."""

    def __init__(self, root: str = "/") -> None:
        self._machine = os.path.join(root, "proc/vmstat")
        self._groups = _groups(root)
        self._before = self._last = self._read()  # two looks ago, one look ago
        self._due = time.monotonic() + _EVERY

    def look(self, now: float) -> None:
        """Now and then, so that only those kills are told that came shortly before the end."""
        if now >= self._due:
            self._due = now + _EVERY
            self._before, self._last = self._last, self._read()

    def kills(self) -> dict[str, int | None] | None:
        """How many were killed shortly before now and the limit they met; None when nobody was."""
        (own, machine), (own_before, machine_before) = self._read(), self._before
        if own is not None and own_before is not None:
            if own <= own_before:
                return None
            found = [procs.text(path).strip() for _, path in self._groups]
            limits = [int(text) for text in found if text.isdigit()]  # v2 says "max"
            tightest = min((limit for limit in limits if limit < _NO_LIMIT), default=None)
            return {"kills": own - own_before, "limit": tightest}
        rose = (machine or 0) - (machine_before or 0)
        return {"kills": rose, "limit": None} if rose > 0 else None

    def _read(self) -> Counts:
        return _count(self._groups[0][0]) if self._groups else None, _count(self._machine)


def _groups(root: str) -> list[tuple[str, str]]:
    """(counter, limit) of our memory group, its ancestors behind it."""
    groups = []
    for line in procs.text(os.path.join(root, "proc/self/cgroup")).splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            top, names = "sys/fs/cgroup/memory", ("memory.oom_control", "memory.limit_in_bytes")
        elif number == "0":
            top, names = "sys/fs/cgroup", ("memory.events", "memory.max")
        else:
            continue
        # In a container the path may be that of the machine; then only the top of the mount is ours.
        parts = [] if ".." in path else [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1):
            folder = os.path.join(root, top, *parts[:depth])
            if _count(os.path.join(folder, names[0])) is not None:
                groups.append((os.path.join(folder, names[0]), os.path.join(folder, names[1])))
    return groups


def _count(path: str) -> int | None:
    for line in procs.text(path).splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.isdigit():
            return int(count)
    return None
