"""Processes as /proc shows them: who they are, and whose children they are.

A pid alone names nobody, since pids are used again: a process is its pid, its start (in clock ticks
since the boot) and the machine's incarnation.
"""

from __future__ import annotations

import os
from typing import Iterable, Iterator, NamedTuple

from . import lenient

_PIECE = 1 << 14  # bytes; for much more the kernel would map and clear memory at each read
_SETS = (b"SigPnd", b"ShdPnd", b"SigBlk", b"SigIgn", b"SigCgt")
_KERNELS = 0x00200000  # PF_KTHREAD of the kernel's sched.h, in the flags of /proc/<pid>/stat
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
    found = (look(pid) for pid in _pids())
    return [process for process in found if process is not None]


def _pids() -> Iterator[int]:
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


def began_ns() -> int:
    """When this life of the machine or container began: the start of its pid 1; 0 when it is hidden."""
    first = look(1)
    for line in read("/proc/stat", 1 << 20).splitlines():
        if line.startswith(b"btime ") and first is not None:
            seconds = int(line.split()[1]) + first.start_ticks / os.sysconf("SC_CLK_TCK")
            return int(seconds * 1e9)
    return 0


def argv0(pid: int) -> str:
    """The program's name; never more of the command line, which is the user's business."""
    return _of(pid, "cmdline", 4096).split(b"\0", 1)[0].decode("utf-8", "replace")


def variable(pid: int, name: bytes) -> bytes:
    """A variable of a process's environment as it was at its start; empty when there is none."""
    found = _of(pid, "environ", 1 << 22).split(b"\0")
    return next((entry[len(name) + 1 :] for entry in found if entry.startswith(name + b"=")), b"")


def name(pid: int) -> str:
    """The process's own short name; empty when it is gone."""
    return _of(pid, "comm", 64).decode("utf-8", "replace").rstrip("\n")


def status(pid: int) -> str:
    """The letter that /proc has for what it does: R, S, D, T (stopped), t (traced), ...; "" when gone."""
    fields = stat(pid)
    return fields[0].decode("ascii", "replace") if fields else ""


def facts(pid: int) -> dict[bytes, bytes]:
    """Return what /proc/<pid>/status says, by name; nothing when the process is gone."""
    lines = (line.partition(b":") for line in _of(pid, "status", 1 << 16).splitlines())
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


def holding(path: str) -> list[int]:
    """The processes, but this one, that have a file open; none where there is no /proc."""
    real = os.path.realpath(path)
    others = (int(name) for name in lenient.listed("/proc") if name.isdigit() and int(name) != os.getpid())
    return sorted(pid for pid in others if any(name == real for _, name in open_files(pid)))


def marks(pid: int) -> dict[str, str]:
    """Return what of ours stands in a process's environment; nothing when it is not ours to see."""
    entries = _environ(pid).split(b"\0") if pid > 1 else []
    found = (entry.partition(b"=") for entry in entries if entry.startswith(b"ORCHESTRATE_"))
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in found}


def bearers(cookie_prefix: str, strangers: set[int] | None = None) -> list[Process]:
    """Our processes with the cookie of `run`, or `run/attempt/task`, and all their descendants.

    `strangers` are pids that were seen without it a moment ago; those that are seen now are added.

    The entry is compared as a whole, up to a `/`: another variable that quotes the cookie, or the
    task worker/10 for worker/1, does not match. This process and its ancestors are never in it, nor
    another user's with a cookie that it has copied: that condemns nobody.
    """
    wanted = f"{COOKIE}={cookie_prefix.rstrip('/')}/".encode()
    known: set[int] = set() if strangers is None else strangers
    suspects = {pid for pid in _pids() if pid not in known and _bears(pid, wanted, known)}
    if not suspects:
        return []  # without the whole table, which costs as much again
    table = scan()
    spared = _ancestors(os.getpid(), table)
    first = [p for p in table if p.pid in suspects and not p.zombie and is_own(p.pid)]
    return with_descendants(first, table, spared)


def with_descendants(
    first: Iterable[Process], table: Iterable[Process], spared: Iterable[int] = ()
) -> list[Process]:
    """These and all that they started, but for `spared` pids."""
    found = {process.pid: process for process in first}
    for process in list(found.values()):
        found.update((below.pid, below) for below in descendants(process.pid, table))
    return [process for pid, process in found.items() if pid not in spared and not process.zombie]


def is_own(pid: int) -> bool:
    """Return True if a process was started as our user; its later changes do not count."""
    ids = facts(pid).get(b"Uid", b"").split()
    return bool(ids) and int(ids[0]) == os.geteuid()


def _bears(pid: int, wanted: bytes, strangers: set[int]) -> bool:
    environ = _of(pid, "environ", 1 << 22)
    if not environ:  # as it is between two programs, too
        if _is_kernels(pid):
            strangers.add(pid)
            return False
        environ = _environ_of_threads(pid)
    if environ.startswith(wanted) or b"\0" + wanted in environ:
        return True
    if environ:
        strangers.add(pid)
    return False


def _is_kernels(pid: int) -> bool:
    """A thread of the kernel has no environment and gets none; a machine with many cores has a thousand."""
    fields = stat(pid)
    return len(fields) > 6 and bool(int(fields[6]) & _KERNELS)


def _environ(pid: int) -> bytes:
    return _of(pid, "environ", 1 << 22) or _environ_of_threads(pid)


def _environ_of_threads(pid: int) -> bytes:
    """The environment as any thread shows it: a first thread that ended shows none."""
    for thread in lenient.listed(f"/proc/{pid}/task"):
        environ = _of(pid, f"task/{thread}/environ", 1 << 22) if thread != str(pid) else b""
        if environ:
            return environ
    return b""


def _ancestors(pid: int, table: Iterable[Process]) -> set[int]:
    parents = {process.pid: process.ppid for process in table}
    found = {pid}
    while parents.get(pid, 0) not in (0, *found):
        pid = parents[pid]
        found.add(pid)
    return found


def _of(pid: int, name: str, limit: int) -> bytes:
    """Read a file of /proc about one process that gives all that is asked for, up to its end."""
    return read(f"/proc/{pid}/{name}", limit, whole=True)


def read(path: str, limit: int, *, whole: bool = False) -> bytes:
    """A file of /proc; empty when the process is gone or not ours to see.

    With `whole` a read that brings less than was asked for is the last one. Lists of the kernel's, as of its
    connections, come in smaller parts.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        asked = min(limit, _PIECE)
        data = more = os.read(fd, asked)
        while more and len(data) < limit and not (whole and len(more) < asked):
            asked = min(limit - len(data), _PIECE)
            more = os.read(fd, asked)
            data += more
        return data
    except OSError:
        return b""
    finally:
        os.close(fd)


def text(path: str) -> str:
    """A small file of /proc or /sys as text; empty when it is not there."""
    return read(path, 1 << 20).decode("utf-8", "replace")
