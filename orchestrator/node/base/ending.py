"""Ending processes: exactly those that were meant, and until they are gone.

Whoever loses its parent below a process that called `prctl.adopt_orphans` becomes its child, so "no children
left" (ECHILD) proves that nothing of a task is alive, however its processes were started.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable

from . import procs
from .fault import NodeError
from .procs import Process


class UnkillableError(NodeError):
    """Processes that SIGKILL has not ended."""


def send(process: Process, signum: int) -> bool:
    """Signal exactly this process; False when it is gone. Raise PermissionError if it is another user's."""
    try:
        handle = _open_handle(process.pid)
        try:
            now = procs.look(process.pid)
            if now is None or now.start_ticks != process.start_ticks:
                return False
            if handle is None:
                os.kill(process.pid, signum)
            else:
                signal.pidfd_send_signal(handle, signum)
        finally:
            if handle is not None:
                os.close(handle)
    except ProcessLookupError:
        return False
    return True


def try_to_send(process: Process, signum: int) -> bool:
    """Like `send`, but return False instead of raising for another user's process."""
    try:
        return send(process, signum)
    except PermissionError:
        return False


def sweep(cookie_prefix: str, patience: float = 5.0) -> list[dict[str, Any]]:
    """End every bearer of a cookie; see `end_all`."""
    strangers: set[int] = set()

    def find() -> list[Process]:
        found = procs.bearers(cookie_prefix, strangers)
        if found:
            strangers.clear()  # they may go, and their pids to others, while we wait for the end of these
        return found

    return end_all(find, cookie_prefix.strip("/"), patience)


def end_all(find: Callable[[], list[Process]], whose: str, patience: float = 5.0) -> list[dict[str, Any]]:
    """Kill what `find` finds until two looks in a row find none; return [{"pid", "argv0"}].

    Raise NodeError after `patience` seconds with one still there.
    """
    killed: dict[int, dict[str, Any]] = {}
    # Whoever was found once counts until it is gone: a process that is dying has no environment any
    # more, and another user's, found as a bearer's child, is found no more without that bearer.
    known: dict[int, Process] = {}
    deadline = time.monotonic() + patience
    clean = 0
    pause = 0.001
    while clean < 2:  # between two programs (exec) a process shows an empty environment
        known.update((process.pid, process) for process in find())
        found = [process for process in known.values() if _same(process)]
        clean = 0 if found else clean + 1
        for process in found:
            killed.setdefault(process.pid, {"pid": process.pid, "argv0": procs.argv0(process.pid)})
            try_to_send(process, signal.SIGKILL)
        if found and time.monotonic() > deadline:
            raise _unkillable(whose, found)
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    return list(killed.values())


def _same(process: Process) -> bool:
    now = procs.look(process.pid)
    return now is not None and now.start_ticks == process.start_ticks and not now.zombie


def _unkillable(whose: str, left: list[Process]) -> UnkillableError:
    names = ", ".join(f"pid {p.pid} ({procs.argv0(p.pid) or '?'})" for p in left[:5])
    return UnkillableError(
        "orphan",
        f"processes of {whose} cannot be killed: {names}",
        "they belong to another user, or wait inside the kernel for a disk, a network file system or a GPU",
        "end them on that machine as root, or restart it",
    )


def _open_handle(pid: int) -> int | None:
    """A descriptor that pins the pid, where Python (3.9) and the kernel (5.3) have them."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


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


def signal_all(signum: int) -> list[Process]:
    """One pass over all descendants; return those that were alive."""
    me = os.getpid()
    if signum == signal.SIGKILL:
        _kill_children(me)
    alive = [process for process in procs.descendants(me, procs.scan()) if not process.zombie]
    for process in alive:
        try_to_send(process, signum)
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
