"""Processes as /proc shows them: who they are, and whose children they are.

A pid alone names nobody, since pids are used again: a process is its pid, its start (in clock ticks
since the boot) and the machine's incarnation.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable, Iterable, Iterator, NamedTuple

from . import lenient
from .fault import NodeError

_SETS = (b"SigPnd", b"ShdPnd", b"SigBlk", b"SigIgn", b"SigCgt")
_SET_PDEATHSIG, _SET_NAME, _SET_CHILD_SUBREAPER = 1, 15, 36  # of prctl(2), which Python lacks
_PATIENCE = 5.0  # seconds until a process that cannot be killed is named
GUARD, SUPERVISOR = "orch-guard", "orch-supervisor"  # the names of the processes above each task
COOKIE = "ORCHESTRATE_TASK"  # run/attempt/task/nonce in the environment of a task and all it starts


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    ppid: int
    pgrp: int
    start_ticks: int
    zombie: bool  # nothing of it runs: a first thread may end before the others


def look(pid: int) -> Process | None:
    """Return what /proc knows about a pid; None when there is no such process."""
    fields = stat(pid)
    if not fields:
        return None
    over = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[19]), over)


def stat(pid: int) -> list[bytes]:
    """The fields of /proc/<pid>/stat behind its name, the state first; none when it is gone."""
    # The name before them may hold anything, blanks and brackets too.
    return _of(pid, "stat", 1024).rpartition(b")")[2].split()


def scan() -> list[Process]:
    """Every process that we may see."""
    found = (look(pid) for pid in pids())
    return [process for process in found if process is not None]


def pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def descendants(root: int, table: Iterable[Process]) -> list[Process]:
    """All processes below `root`, parents before their children."""
    children: dict[int, list[Process]] = {}
    for process in table:
        children.setdefault(process.ppid, []).append(process)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        below = children.pop(waiting.pop(), [])
        found += below
        waiting += [process.pid for process in below]
    return found


def incarnation() -> str:
    """This life of the machine or container: a restarted container keeps its boot id."""
    boot = read("/proc/sys/kernel/random/boot_id", 64).decode().strip()
    namespace = os.readlink("/proc/self/ns/pid")[5:-1]
    first = look(1)  # None where /proc hides other users' processes
    return f"{boot}/{namespace}/{first.start_ticks if first else '-'}"


def argv0(pid: int) -> str:
    """The program's name; never more of the command line, which is the user's business."""
    return own_argv(pid)[0]


def own_argv(pid: int) -> "list[str]":
    """Return the command line of a program that we may have started."""
    return _of(pid, "cmdline", 4096).decode("utf-8", "replace").split("\0")


def name(pid: int) -> str:
    """The process's own short name; empty when it is gone."""
    return _of(pid, "comm", 64).decode("utf-8", "replace").rstrip("\n")


def status(pid: int) -> str:
    """The letter that /proc has for what it does: R, S, D, T (stopped), t (traced), ...; "" when gone."""
    fields = stat(pid)
    return fields[0].decode("ascii", "replace") if fields else ""


def facts(pid: int, file: str = "status") -> dict[bytes, bytes]:
    """Return what a file of /proc/<pid> says, by name; nothing when the process is gone."""
    lines = (line.partition(b":") for line in _of(pid, file, 1 << 16).splitlines())
    return {name: value.strip() for name, _, value in lines}


def signals(pid: int) -> dict[str, int]:
    """The signal sets of a process's first thread, as bits; none when it is gone."""
    found = facts(pid)
    return {name.decode(): int(found[name], 16) for name in _SETS if name in found}


def open_files(pid: int) -> Iterator[tuple[str, str]]:
    """The files that a process holds open, each with its path below /proc; none where we may not see them."""
    folder = f"/proc/{pid}/fd"
    for fd in lenient.listed(folder):
        name = lenient.link(f"{folder}/{fd}")
        if name:  # else it was closed since it was listed: that hides no other
            yield f"{folder}/{fd}", name


def marks(pid: int) -> dict[str, str]:
    """Return what of ours stands in a process's environment; nothing when it is not ours to see."""
    entries = _environ(pid).split(b"\0") if pid > 1 else []
    found = (entry.partition(b"=") for entry in entries if entry.startswith(b"ORCHESTRATE_"))
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in found}


def bearers(cookie_prefix: str) -> list[Process]:
    """Our processes with the cookie of `run`, or `run/attempt/task`, and all their descendants.

    The entry is compared as a whole, up to a `/`: another variable that quotes the cookie, or the
    task worker/10 for worker/1, does not match. This process and its ancestors are never in it, nor
    another user's with a cookie that it has copied: that condemns nobody.
    """
    wanted = f"{COOKIE}={cookie_prefix.rstrip('/')}/".encode()
    kernel = _of_kernel()
    suspects = {pid for pid in pids() if pid not in kernel and _bears(pid, wanted)}
    if not suspects:
        return []  # without the whole table, which costs as much again
    table = scan()
    spared = _ancestors(os.getpid(), table)
    first = [p for p in table if p.pid in suspects and not p.zombie and is_own(p.pid)]
    found = {process.pid: process for process in first}
    for process in first:
        found.update((below.pid, below) for below in descendants(process.pid, table))
    return [process for pid, process in found.items() if pid not in spared and not process.zombie]


def owner(pid: int) -> int:
    """The user that a process was started as, whatever it changed later; -1 when it is gone."""
    return int((facts(pid).get(b"Uid") or b"-1").split()[0])


def is_own(pid: int) -> bool:
    return owner(pid) == os.geteuid()


def _of_kernel() -> set[int]:
    """The kernel's own threads, most of what a large machine runs: 2 is above them, but in a container."""
    fields = stat(2)
    if fields and int(fields[6]) & 0x200000:  # PF_KTHREAD
        return set(map(int, text("/proc/2/task/2/children").split()))
    return set()


def _bears(pid: int, wanted: bytes) -> bool:
    environ = _environ(pid)
    return environ.startswith(wanted) or b"\0" + wanted in environ


def _environ(pid: int) -> bytes:
    data = _of(pid, "environ", 1 << 17)
    return data if len(data) < 1 << 17 else _of(pid, "environ", 1 << 22)  # half of the time is room for more


def _ancestors(pid: int, table: Iterable[Process]) -> set[int]:
    parents = {process.pid: process.ppid for process in table}
    found = {pid}
    while parents.get(pid, 0) not in (0, *found):
        pid = parents[pid]
        found.add(pid)
    return found


def _of(pid: int, name: str, limit: int) -> bytes:
    return read(f"/proc/{pid}/{name}", limit)


def read(path: str, limit: int) -> bytes:
    """A file of /proc, as one call tells it; empty when the process is gone or not ours to see."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, limit)
    except OSError:
        return b""
    finally:
        os.close(file)


def text(path: str) -> str:
    """A file as text; empty when it is not there."""
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


# --- ending processes: exactly those that were meant, and until they are gone ---
#
# Whoever loses its parent below a process that called `adopt_orphans` becomes its child, so "no children
# left" (ECHILD) proves that nothing of a task is alive, however its processes were started.


def send(process: Process, signum: int) -> bool:
    """Signal exactly this process; False when it is gone, or another user's."""
    now = look(process.pid)
    if now is None or now.start_ticks != process.start_ticks:
        return False
    try:
        os.kill(process.pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def sweep(cookie_prefix: str, is_meant: Callable[[int], bool] = lambda _: True) -> list[dict[str, Any]]:
    """Kill every bearer of a cookie until two looks in a row find none; return [{"pid", "argv0"}].

    `is_meant` spares some, by their pid. Raise NodeError after some seconds with one still there.
    """
    killed: dict[int, dict[str, Any]] = {}
    # Whoever was found once counts until it is gone: a process that is dying has no environment any
    # more, and another user's, found as a bearer's child, is found no more without that bearer.
    known: dict[int, Process] = {}
    deadline = time.monotonic() + _PATIENCE
    clean, pause = 0, 0.001
    while clean < 2:  # between two programs (exec) a process shows an empty environment
        known.update((one.pid, one) for one in bearers(cookie_prefix) if is_meant(one.pid))
        found = []
        for process in known.values():
            now = look(process.pid)
            if now is not None and now.start_ticks == process.start_ticks and not now.zombie:
                found.append(process)
        clean = 0 if found else clean + 1
        for process in found:
            killed.setdefault(process.pid, {"pid": process.pid, "argv0": argv0(process.pid)})
            send(process, signal.SIGKILL)
        if found and time.monotonic() > deadline:
            names = ", ".join(f"pid {p.pid} ({argv0(p.pid) or '?'})" for p in found[:5])
            raise NodeError(
                "orphan",
                f"processes of {cookie_prefix.strip('/')} cannot be killed: {names}",
                "they belong to another user, or wait inside the kernel for a disk or a GPU",
                "end them on that machine as root, or restart it",
            )
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    return list(killed.values())


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
    alive = [process for process in descendants(me, scan()) if not process.zombie]
    for process in alive:
        send(process, signum)
    return alive


def _kill_children(me: int) -> None:
    """Kill the children and their groups at once: a group dies whole, however fast it forks.

    Nobody but us reaps a child, so neither its pid nor its group's can have been used again.
    """
    # By the kernel's own list: far faster than a scan, empty where it has none.
    for pid in map(int, text(f"/proc/{me}/task/{me}/children").split()):
        process = look(pid)
        for kill, target in ((os.killpg, process.pgrp if process else 0), (os.kill, pid)):
            if target in (0, os.getpgrp()):
                continue
            try:
                kill(target, signal.SIGKILL)
            except OSError:
                pass  # gone, or another user's: the scan that follows says so


# --- prctl(2) ---

_libc: Any = None


def load() -> None:
    """Load the C library: call it before a fork, so that children neither pay for it nor fail at it."""
    global _libc  # noqa: PLW0603 - loaded once per process
    if _libc is None:
        try:
            import ctypes

            _libc = ctypes.CDLL(None, use_errno=True)
        except (ImportError, OSError) as error:
            what, hint = (
                "the agent's Python cannot call the C library",
                "set `agent_python` to another Python",
            )
            raise NodeError("python", what, f"its ctypes module does not work: {error}", hint) from None


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int) -> None:
    """Get `signum` when the parent's forking thread ends; the caller must look for one that is gone."""
    _prctl(_SET_PDEATHSIG, int(signum))


def set_name(name: str) -> None:
    """Name this process in `ps -o comm`; at most 15 bytes are kept."""
    _prctl(_SET_NAME, name.encode()[:15])


def _prctl(option: int, value: Any) -> None:
    load()
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        import ctypes

        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl({option}): {os.strerror(errno)}")
