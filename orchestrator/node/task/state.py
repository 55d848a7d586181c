"""The state of one task, and operations on it for any process of the same user: read, settle, stop.

state.json always has the same size, so that the end of a task can be written on a full disk. Only the holder
of the task's lock writes it. Exit code and signal are two fields; unknown stays None.
"""

from __future__ import annotations

import errno
import json
import os
import time
import zlib
from contextlib import suppress
from typing import Any, Callable, Dict, Iterator

from ..base import lenient, locks, procs
from ..base.descriptors import write_all
from ..base.fault import reason
from ..base.paths import TaskFolder

State = Dict[str, Any]

STARTING = "starting"  # claimed; the program has not been reached
RUNNING = "running"
STOPPING = "stopping"  # being stopped, or its leader ended and its other processes are being ended
EXITED = "exited"  # code or signal is known
LOST = "lost"  # its supervisor vanished: how it ended is unknown
UNSTARTED = "unstarted"  # the program could not be started; `message` gives the reason
FINAL = frozenset((EXITED, LOST, UNSTARTED))  # nothing of the task is alive

WANT_RUN = "run"
WANT_STOP = "stop"
WANT_KILL = "kill"

CONTAINER_ENDED = "its container ended (killed, out of memory, or its engine was restarted)"
REMOVED = "its folder on this machine was removed while it ran, and the task was ended"

_SIZE = 16_384  # bytes: `MAX_GAPS` gaps, and a message of characters that take twelve bytes each
_MESSAGE = 500  # characters
_LOOKS = 5  # attempts to read a state that is just being written
_PATIENCE = 600.0  # seconds to wait for room: some file systems need it even to overwrite


def new(folder: TaskFolder, incarnation: str, now_ns: int) -> State:
    """Return the state of a task that was just claimed."""
    return {
        "run": folder.run,
        "attempt": folder.attempt,
        "task": folder.task,
        "state": STARTING,
        "want": WANT_RUN,
        "pid": None,
        "start_ticks": None,
        "incarnation": incarnation,
        "exit_code": None,
        "exit_signal": None,
        "started_ns": now_ns,
        "ended_ns": None,
        "gaps": [],
        "oom_kills": 0,  # by the kernel because memory ran out
        "peers": "",  # its contact with other tasks, from meeting.py
        "restarted": False,  # the machine or container was restarted, so the task is lost
        "message": "",
    }


def read(folder: TaskFolder) -> State:
    """Return the last written state; raise FileNotFoundError for a task that was never claimed."""
    for _ in range(_LOOKS):
        with open(folder.state, "rb") as file:
            data = file.read()
        with suppress(ValueError, KeyError):
            state: State = json.loads(data)
            if state.pop("check") == _check(state):
                return state
        time.sleep(0.001)
    return new(folder, "", 0)  # a power failure truncated it: to be settled


def is_final(state: State) -> bool:
    return state["state"] in FINAL


def write(folder: TaskFolder, state: State, flags: int = 0) -> None:
    """Overwrite state.json in place; raise OSError. `read` detects an incomplete one."""
    short = {**state, "message": state["message"][:_MESSAGE]}
    data = json.dumps({**short, "check": _check(short)}).encode()
    fd = os.open(folder.state, os.O_WRONLY | flags, 0o600)
    try:
        write_all(fd, data.ljust(_SIZE))
    finally:
        os.close(fd)


def conclude(folder: TaskFolder, state: State) -> None:
    """Write the final state, waiting for room; the lock is held meanwhile, so it is not reported yet.

    If the disk fails, a free lock without a final state shows the end.
    """
    deadline = time.monotonic() + _PATIENCE
    while os.path.isdir(folder.path) and time.monotonic() < deadline:
        try:
            write(folder, state)
            return
        except OSError as error:
            if error.errno in lenient.FAILED:
                return
            time.sleep(0.5)


def ended(state: State, status: str, message: str) -> State:
    """Return the final state; `lost` never hides a known exit."""
    is_known = state["exit_code"] is not None or state["exit_signal"] is not None
    if status == LOST and is_known:
        status = EXITED
    return {**state, "state": status, "ended_ns": time.time_ns(), "message": message}


def _check(state: State) -> int:
    return zlib.crc32(json.dumps(state).encode())


# --- from another process ---


def is_locked(folder: TaskFolder) -> bool:
    """Return True if a guard or supervisor holds the task's lock; a pid file could be wrong."""
    return locks.is_taken(folder.lock)


def is_gone(folder: TaskFolder) -> bool:
    """Return True if the task's folder was removed, so that nothing in it matters any more."""
    try:
        os.stat(folder.lock)
    except FileNotFoundError:
        return True
    except OSError:
        pass  # its disk may be back in a moment
    return False


def has_ended(folder: TaskFolder, look: Callable[[TaskFolder], State] = read) -> bool:
    """Return True if the task has its final state, or no longer any."""
    try:
        return is_final(look(folder))
    except FileNotFoundError:
        return True


def settle(folder: TaskFolder) -> State:
    """Return the state, corrected first: with a free lock and no final state, our processes were killed.

    In that case the rest of the task is killed by its cookie and `lost` is written. Raise FileNotFoundError
    for a task that does not exist here any more; NodeError for what cannot be killed.
    """
    record = read(folder)
    while not is_final(record):
        if is_locked(folder):
            return read(folder)
        record = _bury(folder)
    return record


def stop(folder: TaskFolder, grace: float, kill: bool) -> bool:
    """Ask a task to end; return False if it has already ended, or has no guard or supervisor."""
    if has_ended(folder) or not is_locked(folder):
        return False
    tell(folder, {"want": WANT_KILL} if kill else {"want": WANT_STOP, "grace": grace})
    return True


def tell(folder: TaskFolder, request: dict[str, Any]) -> None:
    """Write a request to the task's FIFO."""
    try:
        fd = os.open(folder.control, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ENOENT):
            raise
        return  # without a reader the guard is already ending the task
    try:
        os.write(fd, json.dumps(request).encode() + b"\n")
    except (BlockingIOError, BrokenPipeError):
        pass  # full: it has enough requests
    finally:
        os.close(fd)


def requests(data: bytes) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Yield (want, grace, the whole request) of each valid line; others may have written the rest."""
    for line in data.split(b"\n"):
        try:
            order = json.loads(line)
            yield str(order["want"]), float(order.get("grace", 0.0)), order
        except (ValueError, TypeError, KeyError, AttributeError):
            continue


def _bury(folder: TaskFolder) -> State:
    """Take the lock, kill by cookie, then write `lost`."""
    fd = os.open(folder.lock, os.O_RDONLY)  # its disk may be read-only by now
    try:
        if not locks.take(fd):
            time.sleep(0.005)  # another process checks, or settles it
            return read(folder)
        record = read(folder)
        if not is_final(record):
            procs.sweep(f"{folder.run}/{folder.attempt}/{folder.task}")
            why = "its supervisor and its guard were killed together"
            record["restarted"] = record["incarnation"] != procs.incarnation()  # another boot of this machine
            if record["restarted"]:
                why = "the machine or its container was restarted"
                if record["incarnation"].partition("/")[0] == procs.incarnation().partition("/")[0]:
                    why = CONTAINER_ENDED
            record = ended(record, LOST, why)
            try:
                write(folder, record)
            except OSError as error:  # the next check finds the same
                record["message"] = f"its end could not be recorded: {reason(error)} ({folder.state})"
        return record
    finally:
        os.close(fd)
