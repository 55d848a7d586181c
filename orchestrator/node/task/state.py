"""The facts about one task, and what any process of the same user may do about it: ask, settle, stop.

state.json is always of one size: there is room for the end of a task on a full disk, too. Only the holder of
the task's lock writes it. Exit code and signal are two fields; unknown stays None.
"""

from __future__ import annotations

import errno
import json
import os
import time
import zlib
from typing import Any, Callable, Dict, Iterator

from ..base import locks, procs
from ..base.descriptors import write_all
from ..base.paths import TaskFolder

State = Dict[str, Any]

STARTING = "starting"  # claimed; the program has not been reached
RUNNING = "running"
STOPPING = "stopping"  # told to end, or its leader ended and its other processes are being ended
EXITED = "exited"  # code or signal is known
LOST = "lost"  # its supervisor vanished: how it ended is unknown
UNSTARTED = "unstarted"  # the program could not be started; `message` says why
FINAL = frozenset((EXITED, LOST, UNSTARTED))  # nothing of the task is alive

WANT_RUN = "run"
WANT_STOP = "stop"
WANT_KILL = "kill"

REMOVED = "its folder on this machine was removed while it ran, and the task was ended"

_SIZE = 16_384  # bytes: `MAX_GAPS` gaps, and a message of letters that take twelve bytes each
_MESSAGE = 500  # characters
_LOOKS = 5  # at a state that is just being written
_PATIENCE = 600.0  # seconds for room on a disk that writes in other places what it overwrites


def new(folder: TaskFolder, incarnation: str, now_ns: int) -> State:
    """The state of a task that was just claimed."""
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
        "oom_kills": 0,  # by the kernel, for want of memory
        "peers": "",  # whether it has met them, as meeting.py has it
        "restarted": False,  # the machine or container was, under a task that is lost by it
        "message": "",
    }


def read(folder: TaskFolder) -> State:
    """The state as last written; raise FileNotFoundError for a task that was never claimed."""
    for _ in range(_LOOKS):
        with open(folder.state, "rb") as file:
            data = file.read()
        try:
            state: State = json.loads(data)
            if state.pop("check") == _check(state):
                return state
        except (ValueError, KeyError):
            pass
        time.sleep(0.001)
    return new(folder, "", 0)  # a power failure cut it short: to be settled


def is_final(state: State) -> bool:
    return state["state"] in FINAL


def write(folder: TaskFolder, state: State, flags: int = 0) -> None:
    """Overwrite state.json in its place; raise OSError. `read` sees whether it has all of it."""
    short = {**state, "message": state["message"][:_MESSAGE]}
    data = json.dumps({**short, "check": _check(short)}).encode()
    fd = os.open(folder.state, os.O_WRONLY | flags, 0o600)
    try:
        write_all(fd, data.ljust(_SIZE))
    finally:
        os.close(fd)


def conclude(folder: TaskFolder, state: State) -> None:
    """Write the final state, waiting for room; the lock is held for so long: it is not told yet."""
    deadline = time.monotonic() + _PATIENCE
    while os.path.isdir(folder.path) and time.monotonic() < deadline:
        try:
            write(folder, state)
            return
        except OSError:
            time.sleep(0.5)


def ended(state: State, status: str, message: str) -> State:
    """The final state; `lost` never hides an exit that is known."""
    known = state["exit_code"] is not None or state["exit_signal"] is not None
    if status == LOST and known:
        status = EXITED
    return {**state, "state": status, "ended_ns": time.time_ns(), "message": message}


def _check(state: State) -> int:
    return zlib.crc32(json.dumps(state).encode())


# --- from another process ---


def is_locked(folder: TaskFolder) -> bool:
    """Return True if a guard or supervisor holds the task's lock; a pid file could lie."""
    return locks.is_taken(folder.lock)


def is_gone(folder: TaskFolder) -> bool:
    """Return True if somebody removed it: what a task's processes write into it is nobody's any more."""
    try:
        os.stat(folder.lock)
    except FileNotFoundError:
        return True
    except OSError:
        pass  # its disk may be back in a moment
    return False


def has_ended(folder: TaskFolder, look: Callable[[TaskFolder], State] = read) -> bool:
    """Return True if it has its final state, or none any more."""
    try:
        return is_final(look(folder))
    except FileNotFoundError:
        return True


def settle(folder: TaskFolder) -> State:
    """The state, made true first: with the lock free and no final state, both our processes were killed.

    Then what is left of the task is killed by its cookie and `lost` is written. Raise FileNotFoundError
    for a task that is not here, or not any more; NodeError for what cannot be killed.
    """
    found = read(folder)
    while not is_final(found):
        if is_locked(folder):
            return read(folder)
        found = _bury(folder)
    return found


def stop(folder: TaskFolder, grace: float, kill: bool) -> bool:
    """Ask a task to end; False when it has ended already, or nobody is there to hear it."""
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
        return  # without a reader the guard is ending the task already
    try:
        os.write(fd, json.dumps(request).encode() + b"\n")
    except (BlockingIOError, BrokenPipeError):
        pass  # full: it was asked often enough
    finally:
        os.close(fd)


def requests(data: bytes) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """(want, grace, all of it) of each line that is a request; anybody may have written the others."""
    for line in data.split(b"\n"):
        try:
            asked = json.loads(line)
            yield str(asked["want"]), float(asked.get("grace", 0.0)), asked
        except (ValueError, TypeError, KeyError, AttributeError):
            continue


def _bury(folder: TaskFolder) -> State:
    """Take the lock, kill by cookie, then write `lost`."""
    fd = os.open(folder.lock, os.O_RDWR)
    try:
        if not locks.take(fd):
            time.sleep(0.005)  # another one looks, or settles it
            return read(folder)
        found = read(folder)
        if not is_final(found):
            procs.sweep(f"{folder.run}/{folder.attempt}/{folder.task}")
            why = "its supervisor and its guard were killed together"
            found["restarted"] = found["incarnation"] != procs.incarnation()  # another life of this machine
            if found["restarted"]:
                why = "the machine or its container was restarted"
            found = ended(found, LOST, why)
            try:
                write(folder, found)
            except OSError:
                pass  # no room: whoever looks next finds the same
        return found
    finally:
        os.close(fd)
