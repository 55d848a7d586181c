"""Ends everything below this process. It must have called `prctl.adopt_orphans`.

Whoever loses its parent below an adopting process becomes its child, so "no children left"
(ECHILD) proves that nothing of the task is alive, however its processes were started.
"""

from __future__ import annotations

import os
import signal

from ..base import ending, procs


def reap() -> tuple[list[tuple[int, int]], bool]:
    """The (pid, wait status) of children that ended, and whether any child is left."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended.append((pid, status))


def signal_all(signum: int) -> list[procs.Process]:
    """One pass over all descendants; return those that were alive."""
    me = os.getpid()
    if signum == signal.SIGKILL:
        _kill_children(me)
    alive = [process for process in procs.descendants(me, procs.scan()) if not process.zombie]
    for process in alive:
        ending.try_to_send(process, signum)
    return alive


def _kill_children(me: int) -> None:
    """Kill the children and their groups at once: a group dies whole, however fast it forks.

    Nobody but us reaps a child, so neither its pid nor its group's can have been used again.
    """
    # By the kernel's own list: far faster than a scan, empty where it has none.
    for pid in map(int, procs.read(f"/proc/{me}/task/{me}/children", 1 << 20).split()):
        process = procs.look(pid)
        for kill, target in ((os.killpg, process.pgrp if process else 0), (os.kill, pid)):
            if target in (0, os.getpgrp()):
                continue
            try:
                kill(target, signal.SIGKILL)
            except OSError:
                pass  # gone, or another user's: the scan that follows says so
