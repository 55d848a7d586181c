"""The stacks of one Python process as text: by py-spy where it may look, else by the signal.

Both come out as faulthandler writes them, innermost frame first, the main thread last.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import Any, Iterator, Tuple

from ..base import ending, locks, procs
from ..base.fault import reason
from ..hook.site import SIGNAL
from ..task import environ

Dump = Tuple[str, str, str]  # "py-spy", "signal" or "none"; the text; why it is not more

PATIENCE = 3.0  # seconds that one process has to answer
_STEADY = 0.02  # seconds without a further byte, after which a dump is over
_LIMIT = 1 << 20  # bytes of one dump
_BIT = 1 << (SIGNAL - 1)


def take(process: procs.Process, path: bytes, name: str, seconds: float) -> Dump:
    """The stacks of a process; `path` is its PATH, `name` that of its task's dumps."""
    spy = environ.find_program("py-spy", path)
    why = ""
    if spy is not None:
        text, why = ask_py_spy(spy, process.pid, stopped=_is_stopped(process), seconds=seconds)
        if text:
            return "py-spy", text, ""
        why = f"py-spy: {why}"
    text, silent = ask_by_signal(process, name, seconds)
    if text:
        return "signal", text, ""
    return "none", "", "; ".join(filter(None, (silent, why)))


def ask_py_spy(spy: str, pid: int, *, stopped: bool, seconds: float) -> tuple[str, str]:
    """(text, "") or ("", why not). A stopped process cannot be paused, and need not be."""
    argv = [spy, "dump", "--json", "--pid", str(pid), *(["--nonblocking"] if stopped else [])]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
        return worded(json.loads(done.stdout)), ""
    except subprocess.TimeoutExpired:
        return "", f"no answer within {seconds:g} s"
    except OSError as error:
        return "", reason(error)
    except (ValueError, TypeError, KeyError, AttributeError):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        said = [line.strip() for line in lines if line.strip()]
        return "", (said[0] if said else f"it ended with {done.returncode}")[:300]


def worded(threads: Any) -> str:
    """Return what py-spy says of a process's threads, as faulthandler would have said it."""
    ordered = sorted(threads, key=lambda one: one["thread_name"] == "MainThread")
    return "\n".join(part for thread in ordered for part in _thread(thread))


def _thread(thread: dict[str, Any]) -> Iterator[str]:
    doing = ", holds the GIL" if thread.get("owns_gil") else ""
    name = thread["thread_name"] or "?"
    yield f"Thread 0x{thread['thread_id']:016x} [{name}{doing}] (most recent call first):"
    for frame in thread["frames"]:
        function = frame["name"].rpartition(".")[2]  # newer Pythons say Class.method
        yield f'  File "{frame["filename"]}", line {frame["line"]} in {function}'
    yield ""


def ask_by_signal(process: procs.Process, name: str, seconds: float) -> tuple[str, str]:
    """(text, "") or ("", why not). Nothing is sent unless the process itself has made ready for it."""
    place = held(process.pid, name)
    if place is None:
        return "", "it has not made ready for the signal"
    signals = procs.signals(process.pid)
    if _is_stopped(process):
        return "", "it is stopped, and answers no signal"
    if not signals.get("SigCgt", 0) & _BIT:
        return "", f"it no longer handles signal {SIGNAL}"
    if (signals.get("ShdPnd", 0) | signals.get("SigPnd", 0)) & _BIT:
        return "", "it has not answered the last time yet"
    deadline = time.monotonic() + seconds
    try:
        fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return "", reason(error)
    try:
        if not locks.take(fd, deadline - time.monotonic()):
            return "", "somebody else is taking its stacks"
        os.ftruncate(fd, 0)
        if not ending.send(process, SIGNAL):
            return "", "it has ended"
        return _answer(fd, process.pid, deadline)
    finally:
        os.close(fd)


def _is_stopped(process: procs.Process) -> bool:
    return procs.status(process.pid) in ("T", "t")


def held(pid: int, name: str) -> str | None:
    """The path under /proc of the dump file that a process holds open, if it does.

    A child that was forked holds its parent's, and its handler too.
    """
    for path, link in procs.open_files(pid):
        if link.startswith(name + ".") and link.endswith(" (deleted)"):
            return path
    return None


def _answer(fd: int, pid: int, deadline: float) -> tuple[str, str]:
    """Wait for a dump to be whole: while it is written, its thread blocks the signal."""
    size, since = 0, time.monotonic()
    while time.monotonic() < deadline:
        now = os.fstat(fd).st_size
        if now != size:
            size, since = now, time.monotonic()
        if size and time.monotonic() - since > _STEADY and not procs.signals(pid).get("SigBlk", 0) & _BIT:
            break
        time.sleep(0.005)
    if not size:
        return "", f"it did not answer signal {SIGNAL} within {PATIENCE:g} s"
    return os.pread(fd, _LIMIT, 0).decode("utf-8", "replace"), ""
