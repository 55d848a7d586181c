"""Kills of the kernel for want of memory: its counters, before a task and after it.

cgroup v1   <memory>/<path>/memory.oom_control: oom_kill N, memory.limit_in_bytes
cgroup v2   <root>/<path>/memory.events: oom_kill N, memory.max
machine     /proc/vmstat: oom_kill N, whoever was killed

A group counts its own, whatever limit was met; those above and the machine count others' too. So the machine
is asked only where no group counts, or where SIGKILL ended the task and its own group knows nothing of it: a
`setup` may have moved the task to another group.
"""

from __future__ import annotations

import os
import time
from typing import Dict

from ..base import procs

Counts = Dict[str, int]  # file -> kills

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

    def kills(self, killed: bool = False) -> dict[str, int | None] | None:
        """How many were killed shortly before now and the limit they met; None when nobody was.

        `killed` says that SIGKILL, not sent by us, ended the task.
        """
        now = self._read()
        if not killed and len(now) > 1:
            now.pop(self._machine, None)
        for path, count in now.items():
            rose = count - self._before.get(path, count)
            if rose > 0:
                return {"kills": rose, "limit": None if path == self._machine else self._limit()}
        return None

    def _read(self) -> Counts:
        """The counter that tells of us, the nearest there is, and the machine's behind it."""
        found = {}
        for path in (os.path.join(folder, counter) for folder, counter, _ in self._groups):
            count = _count(path)
            if count is not None:
                found[path] = count
                break
        count = _count(self._machine)
        if count is not None:
            found[self._machine] = count
        return found

    def _limit(self) -> int | None:
        """The tightest of our group and those above."""
        found = [procs.text(os.path.join(folder, limit)).strip() for folder, _, limit in self._groups]
        limits = [int(text) for text in found if text.isdigit()]  # v2 says "max"
        return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def _groups(root: str) -> list[tuple[str, str, str]]:
    """(folder, counter, limit) of our memory group, its ancestors behind it."""
    groups = []
    for line in procs.text(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, found, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            top, names = "sys/fs/cgroup/memory", ("memory.oom_control", "memory.limit_in_bytes")
        elif found and not controllers:
            top, names = "sys/fs/cgroup", ("memory.events", "memory.max")
        else:
            continue
        # In a container the path may be that of the machine; then only the top of the mount is ours.
        for above in _and_above(path):
            folder = os.path.join(root, top, above)
            if os.path.exists(os.path.join(folder, names[0])):
                groups.append((folder, *names))
    return groups


def _and_above(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    if ".." in parts:  # a group outside of the container's
        return [""]
    return ["/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]


def _count(path: str) -> int | None:
    for line in procs.text(path).splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.isdigit():
            return int(count)
    return None
