"""state.json: the facts about one task, replaced as a whole so that a reader never sees half of them.

Only the holder of the task's lock writes. Exit code and signal are two fields; unknown stays None.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, Union

from .paths import TaskFolder

SCHEMA = 1

STARTING = "starting"  # claimed; the program has not been reached
RUNNING = "running"
STOPPING = "stopping"  # told to end, or its leader ended and its other processes are being ended
EXITED = "exited"  # code or signal is known
LOST = "lost"  # supervisor or guard vanished: how it ended is unknown
UNSTARTED = "unstarted"  # the program could not be started; `message` says why
FINAL = frozenset((EXITED, LOST, UNSTARTED))  # nothing of the task is alive

WANT_RUN = "run"
WANT_STOP = "stop"
WANT_KILL = "kill"

State = Dict[str, Any]
Folder = Union[str, "os.PathLike[str]"]

_SPARE = 16384


def new(folder: TaskFolder, incarnation: str, now_ns: int) -> State:
    """The state of a task that was just claimed."""
    return {
        "schema": SCHEMA,
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
        "message": "",
    }


def read(folder: Folder) -> State:
    """The state as last written; raise FileNotFoundError for a task that was never claimed."""
    with open(os.path.join(folder, "state.json"), "rb") as file:
        state: State = json.loads(file.read())
    return state


def is_final(state: State) -> bool:
    return state["state"] in FINAL


def write(folder: Folder, state: State) -> None:
    """Replace state.json; raise OSError (a full disk) and leave the old one."""
    beside = os.path.join(folder, "state.next")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(fd, _encode(state))
    except OSError:
        os.unlink(beside)
        raise
    finally:
        os.close(fd)
    os.replace(beside, os.path.join(folder, "state.json"))


def write_last(folder: Folder, state: State) -> None:
    """Like `write`, and on a full disk the room that `set_aside` kept is used."""
    try:
        write(folder, state)
    except OSError:
        _write_into_spare(folder, state)
    _discard(os.path.join(folder, "state.spare"))


def conclude(folder: Folder, state: State, patience: float = 600.0) -> None:
    """Write the final state, waiting for room; the lock is held for so long: it is not told yet."""
    deadline = time.monotonic() + patience
    while True:
        try:
            write_last(folder, state)
            return
        except OSError:
            if time.monotonic() > deadline or not os.path.isdir(folder):
                return
            time.sleep(0.5)


def set_aside(folder: Folder) -> None:
    """Keep the room for one last state: how a task ended must be told on a full disk too."""
    fd = os.open(
        os.path.join(folder, "state.spare"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
    )
    try:
        _write_all(fd, b" " * _SPARE)
    finally:
        os.close(fd)


def ended(state: State, status: str, now_ns: int, message: str) -> State:
    """The final state; `lost` never hides an exit that is known."""
    known = state["exit_code"] is not None or state["exit_signal"] is not None
    if status == LOST and known:
        status = EXITED
    return {**state, "state": status, "ended_ns": now_ns, "message": message}


def _write_into_spare(folder: Folder, state: State) -> None:
    spare = os.path.join(folder, "state.spare")
    data = _encode(state)
    if len(data) > _SPARE:
        data = _encode({**state, "gaps": state["gaps"][:8]})
    fd = os.open(spare, os.O_WRONLY | os.O_CLOEXEC)
    try:
        _write_all(fd, data.ljust(_SPARE))  # in place: blocks that are there already
    finally:
        os.close(fd)
    os.replace(spare, os.path.join(folder, "state.json"))


def _encode(state: State) -> bytes:
    return json.dumps(state).encode() + b"\n"


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _discard(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
