"""The processors of a machine that this login may use."""

from __future__ import annotations

import os

from ..base import procs


def usable() -> float:
    """How many; of a container's quota a part, too."""
    number = float(len(os.sched_getaffinity(0)))
    quota = procs.text("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
        number = min(number, int(quota[0]) / max(1, int(quota[1])))
    return round(number, 2)
