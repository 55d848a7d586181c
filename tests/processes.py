"""Programs run to their end, and live processes as /proc shows them."""

import contextlib
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def cmdline(pid: int) -> bytes:
    """Return the arguments of a process, each followed by a NUL; empty if it is gone."""
    return _read(pid, "cmdline")


def environ(pid: int) -> bytes:
    """Return the environment a process was started with; empty for a zombie."""
    return _read(pid, "environ")


def cookies(pid: int) -> list[str]:
    """Return the tasks in a process's cookie, as RUN/ATTEMPT/ROLE/INDEX/..."""
    mark = b"ORCHESTRATE_TASK="
    entries = environ(pid).split(b"\0")
    return [entry.removeprefix(mark).decode(errors="replace") for entry in entries if entry.startswith(mark)]


def bearers(run: str, task: str | None = None) -> list[int]:
    """Return the processes of a run, or of one of its tasks."""

    def is_meant(cookie: str) -> bool:
        return cookie.startswith(f"{run}/") and (task is None or f"/{task}/" in cookie)

    return [pid for pid in pids() if any(map(is_meant, cookies(pid)))]


def opened(pid: int) -> list[str]:
    """Return the open files of a process, skipping any that it closes meanwhile."""
    found = []
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def has_open(pid: int, file: os.stat_result, state: str = "") -> bool:
    """Return whether a process has exactly this file open; pipes and sockets may share its inode number.

    `state` is part of what /proc shows for the descriptor.
    """
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                is_it = os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), file)
                if is_it and state.encode() in _read(pid, f"fdinfo/{fd}"):
                    return True
    return False


def openers(path: Path, *others: int, state: str = "") -> Iterator[int]:
    """Yield the processes other than `others` that have a file open."""
    with contextlib.suppress(FileNotFoundError):
        file = path.stat()
        yield from (pid for pid in pids() if pid not in others and has_open(pid, file, state))


def holder(lock: Path, *others: int) -> int:
    """Return the holder of a file's lock other than `others`, which share it; 0 if there is none.

    The lock was taken before the fork: in a container /proc/locks hides it, since its owner has ended.
    """
    return next(openers(lock, *others, state="FLOCK"), 0)


def send(number: int, pids: Iterable[int]) -> list[int]:
    """Send a signal to those processes that still exist, and return them."""
    found = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            found.append(pid)
    return found


def is_gone(pid: int) -> bool:
    """Return whether a process has ended and released its files."""
    state = _read(pid, "stat").rpartition(b")")[2].split()
    return not state or state[0] in {b"Z", b"X"}


def descendants(roots: list[int]) -> list[int]:
    parents: dict[int, int] = {}
    for pid in pids():
        if fields := _read(pid, "stat").rpartition(b")")[2].split():
            parents[pid] = int(fields[1])
    found: list[int] = []
    level = set(roots)
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += level
    return found


def called(argv: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program, and return its status and output."""
    return subprocess.run(argv, check=False, capture_output=True, text=True, **options)
