"""Processes as /proc shows them: their identity, and their parents.

A pid alone identifies nothing, because pids are reused: a process is its pid, its start (in clock ticks
since the boot) and the machine's incarnation.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Any, Callable, Iterable, Iterator, NamedTuple

from . import lenient
from .descriptors import close_others
from .fault import NodeError

_SETS = (b"SigPnd", b"ShdPnd", b"SigBlk", b"SigIgn", b"SigCgt")
_SET_PDEATHSIG, _SET_NAME, _SET_CHILD_SUBREAPER = 1, 15, 36  # of prctl(2), which Python lacks
_PATIENCE = 5.0  # seconds until a process that cannot be killed is reported
GUARD, SUPERVISOR = "orch-guard", "orch-supervisor"  # the names of the processes above each task
COOKIE = "ORCHESTRATE_TASK"  # run/attempt/task/nonce in the environment of a task and of everything it starts


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    ppid: int
    pgrp: int
    start_ticks: int
    zombie: bool  # nothing of it runs: a first thread may end before the others


def look(pid: int) -> Process | None:
    """Return /proc's facts about a pid; None if there is no such process."""
    fields = stat(pid)
    if not fields:
        return None
    over = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[19]), over)


def stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/<pid>/stat after its name, the state first; none if it is gone."""
    # The name before them may contain anything, including blanks and brackets.
    return _of(pid, "stat", 1024).rpartition(b")")[2].split()


def scan() -> list[Process]:
    """Return every process that we may see."""
    processes = (look(pid) for pid in pids())
    return [process for process in processes if process is not None]


def pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def descendants(root: int, table: Iterable[Process]) -> list[Process]:
    """Return all processes below `root`, parents before their children."""
    children: dict[int, list[Process]] = {}
    for process in table:
        children.setdefault(process.ppid, []).append(process)
    all_below: list[Process] = []
    waiting = [root]
    while waiting:
        below = children.pop(waiting.pop(), [])
        all_below += below
        waiting += [process.pid for process in below]
    return all_below


def incarnation() -> str:
    """Return an identifier of this boot of the machine or container, which keeps the host's boot id."""
    boot = read("/proc/sys/kernel/random/boot_id", 64).decode().strip()
    namespace = os.readlink("/proc/self/ns/pid")[5:-1]
    first = look(1)  # None where /proc hides other users' processes
    return f"{boot}/{namespace}/{first.start_ticks if first else '-'}"


def argv0(pid: int) -> str:
    """Return the program's name, but never the rest of its command line, which is private."""
    return own_argv(pid)[0]


def own_argv(pid: int) -> "list[str]":
    """Return the command line of a program that we may have started."""
    return _of(pid, "cmdline", 4096).decode("utf-8", "replace").split("\0")


def name(pid: int) -> str:
    """Return the process's own short name; empty if it is gone."""
    return _of(pid, "comm", 64).decode("utf-8", "replace").rstrip("\n")


def status(pid: int) -> str:
    """Return /proc's letter for its state: R, S, D, T (stopped), t (traced), ...; "" if gone."""
    fields = stat(pid)
    return fields[0].decode("ascii", "replace") if fields else ""


def facts(pid: int, file: str = "status") -> dict[bytes, bytes]:
    """Return the fields of a file of /proc/<pid> by name; none if the process is gone."""
    lines = (line.partition(b":") for line in _of(pid, file, 1 << 16).splitlines())
    return {name: value.strip() for name, _, value in lines}


def signals(pid: int) -> dict[str, int]:
    """Return the signal sets of a process's first thread, as bits; none if it is gone."""
    fields = facts(pid)
    return {name.decode(): int(fields[name], 16) for name in _SETS if name in fields}


def open_files(pid: int) -> Iterator[tuple[str, str]]:
    """Return a process's open files, each with its path below /proc; none without permission."""
    folder = f"/proc/{pid}/fd"
    for fd in lenient.listed(folder):
        name = lenient.link(f"{folder}/{fd}")
        if name:  # otherwise it was closed since it was listed: that hides no other
            yield f"{folder}/{fd}", name


def marks(pid: int) -> dict[str, str]:
    """Return our variables in a process's environment; none without permission."""
    entries = _environ(pid).split(b"\0") if pid > 1 else []
    pairs = (entry.partition(b"=") for entry in entries if entry.startswith(b"ORCHESTRATE_"))
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def bearers(cookie_prefix: str) -> list[Process]:
    """Return our processes with the cookie of `run`, or `run/attempt/task`, and all their descendants.

    The entry is compared as a whole, up to a `/`: another variable that quotes the cookie, or the task
    worker/10 for worker/1, does not match. This process and its ancestors are never included, nor another
    user's with a copied cookie.
    """
    cookie = f"{COOKIE}={cookie_prefix.rstrip('/')}/".encode()
    suspects = {pid for pid in pids() if b"\0" + cookie in b"\0" + _environ(pid)}
    if not suspects:
        return []  # without the whole table, which costs as much again
    table = scan()
    spared = _ancestors(os.getpid(), table)
    first = [p for p in table if p.pid in suspects and not p.zombie and is_own(p.pid)]
    members = {process.pid: process for process in first}
    for process in first:
        members.update((below.pid, below) for below in descendants(process.pid, table))
    return [process for pid, process in members.items() if pid not in spared and not process.zombie]


def owner(pid: int) -> int:
    """Return the user that a process was started as, whatever it changed later; -1 if it is gone."""
    return int((facts(pid).get(b"Uid") or b"-1").split()[0])


def is_own(pid: int) -> bool:
    return owner(pid) == os.geteuid()


def variable(pid: int, name: bytes) -> bytes:
    """Return a variable as a process got it at its start; empty without permission."""
    return (b"\0" + _environ(pid)).partition(b"\0" + name + b"=")[2].partition(b"\0")[0]


def _environ(pid: int) -> bytes:
    data = _of(pid, "environ", 1 << 17)  # making room for more takes as long as reading it
    return data if len(data) < 1 << 17 else _of(pid, "environ", 1 << 22)


def _ancestors(pid: int, table: Iterable[Process]) -> set[int]:
    parents = {process.pid: process.ppid for process in table}
    ancestors = {pid}
    while parents.get(pid, 0) not in (0, *ancestors):
        pid = parents[pid]
        ancestors.add(pid)
    return ancestors


def _of(pid: int, name: str, limit: int) -> bytes:
    return read(f"/proc/{pid}/{name}", limit)


def read(path: str, limit: int) -> bytes:
    """Return a file of /proc, as read by one call; empty if the process is gone or not ours to see."""
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
    """Return a file as text; empty if it does not exist."""
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


# --- ending processes: exactly the intended ones, and until they are gone ---
#
# A process that loses its parent below a process that called `adopt_orphans` becomes its child, so "no
# children left" (ECHILD) proves that nothing of a task is alive, however its processes were started.


def send(process: Process, signum: int) -> bool:
    """Signal exactly this process; return False if it is gone, or another user's."""
    now = look(process.pid)
    if now is None or now.start_ticks != process.start_ticks:
        return False
    try:
        os.kill(process.pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def sweep(cookie_prefix: str, is_meant: Callable[[int], bool] = lambda _: True) -> list[dict[str, Any]]:
    """Kill every bearer of a cookie until two checks in a row find none; return [{"pid", "argv0"}].

    `is_meant` spares some, by their pid. Raise NodeError if one is still there after some seconds.
    """
    killed: dict[int, dict[str, Any]] = {}
    # A process that was found once counts until it is gone: a dying process has no environment any more, and
    # another user's, found as a bearer's child, is no longer found without that bearer.
    condemned: dict[int, Process] = {}
    deadline = time.monotonic() + _PATIENCE
    clean, pause = 0, 0.001
    while clean < 2:  # between two programs (exec) a process shows an empty environment
        condemned.update((bearer.pid, bearer) for bearer in bearers(cookie_prefix) if is_meant(bearer.pid))
        alive = []
        for process in condemned.values():
            now = look(process.pid)
            if now is not None and now.start_ticks == process.start_ticks and not now.zombie:
                alive.append(process)
        clean = 0 if alive else clean + 1
        for process in alive:
            killed.setdefault(process.pid, {"pid": process.pid, "argv0": argv0(process.pid)})
            send(process, signal.SIGKILL)
        if alive and time.monotonic() > deadline:
            names = ", ".join(f"pid {p.pid} ({argv0(p.pid) or '?'})" for p in alive[:5])
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
    """Return the (pid, wait status) of children that ended, and whether any child is left."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended.append((pid, status))


def signal_all(signum: int, spared: int = 0) -> list[Process]:
    """Signal all descendants once, as `alive` returns them; return those that were alive."""
    if signum == signal.SIGKILL:
        _kill_children(os.getpid(), spared)
    living = alive(spared)
    for process in living:
        send(process, signum)
    return living


def alive(spared: int = 0) -> list[Process]:
    """Return our descendants that live, without one of our children and all that is below it."""
    table = [process for process in scan() if process.pid != spared]
    return [process for process in descendants(os.getpid(), table) if not process.zombie]


def _kill_children(me: int, spared: int) -> None:
    """Kill the children and their groups at once: a group dies completely, however fast it forks.

    Only we reap a child, so neither its pid nor its group's can have been reused.
    """
    # By the kernel's own list: far faster than a scan; empty if the kernel has none.
    for pid in map(int, text(f"/proc/{me}/task/{me}/children").split()):
        process = None if pid == spared else look(pid)
        if process is None:
            continue
        for kill, target in ((os.killpg, process.pgrp), (os.kill, pid)):
            if target in (0, os.getpgrp()):
                continue
            try:
                kill(target, signal.SIGKILL)
            except OSError:
                pass  # gone, or another user's: the scan that follows reports it


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
            what, why = "the agent's Python cannot call the C library", f"its ctypes module: {error}"
            raise NodeError("python", what, why, "set `agent_python` to another Python") from None


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int) -> None:
    """Receive `signum` when the parent's forking thread ends; the caller checks if it already has."""
    _prctl(_SET_PDEATHSIG, int(signum))


def set_name(name: str) -> None:
    """Set this process's name in `ps -o comm`; at most 15 bytes are kept."""
    _prctl(_SET_NAME, name.encode()[:15])


def _prctl(option: int, value: Any) -> None:
    load()
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        import ctypes

        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl({option}): {os.strerror(errno)}")


# --- a process that outlives us ---


def detach(main: Callable[[], object], keep: list[int]) -> None:
    """Run `main` in a session of its own, as no child of ours, with only `keep` open; raise OSError."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        between = os.fork()
        if between == 0:
            try:
                os.setsid()
                if os.fork() == 0:
                    _let_go(keep)
                    main()
                os._exit(0)
            finally:
                os._exit(1)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    status = os.waitpid(between, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:  # killed, it may have forked before
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _let_go(keep: list[int]) -> None:
    """Close what the caller had open: its protocol channel would stay open with us."""
    os.chdir("/")
    close_others({0, 1, 2, *keep})
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
