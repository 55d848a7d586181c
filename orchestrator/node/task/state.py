"""state.json: the facts about one task, replaced as a whole so that a reader never sees half of them.

Only the holder of the task's lock writes. Exit code and signal are two fields; unknown stays None.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict

from ..base import lenient
from ..base.descriptors import write_all
from ..base.paths import TaskFolder

State = Dict[str, Any]

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


REMOVED = "its folder on this machine was removed while it ran, and the task was ended"

FOR_GAP = "reserve.gap"  # room kept for the word that the disk is full,
FOR_END = "reserve.end"  # and for the last one: how a task ended must be told on a full disk too

_PATIENCE = 600.0  # seconds for room on the disk
_RESERVE = 16_384


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
        "oom": None,  # or {"kills", "limit"}: what the kernel killed for want of memory
        "restarted_ns": None,  # when the machine or container was, under a task that is lost by it
        "message": "",
    }


def read(folder: TaskFolder) -> State:
    """The state as last written; raise FileNotFoundError for a task that was never claimed."""
    with open(folder.state, "rb") as file:
        data = file.read()
    try:
        state: State = json.loads(data)
        return state
    except ValueError:
        return new(folder, "", 0)  # a power failure cut it short: to be settled


def is_final(state: State) -> bool:
    return state["state"] in FINAL


def write(folder: TaskFolder, state: State, reserve: str = "") -> None:
    """Replace state.json; on a full disk with the room that a reserve keeps.

    Raise OSError when there is none, and leave the old state.
    """
    os.replace(_prepare(folder, state, reserve), folder.state)


def write_last(folder: TaskFolder, state: State) -> None:
    """The final state, after which nothing of the folder changes any more."""
    prepared = _prepare(folder, state, FOR_END)
    for name in (FOR_GAP, FOR_END):
        if os.path.join(folder, name) != prepared:
            lenient.discard(os.path.join(folder, name))
    os.replace(prepared, folder.state)


def _prepare(folder: TaskFolder, state: State, reserve: str) -> str:
    """A file beside state.json with the new state in it."""
    beside = os.path.join(folder, "state.next")
    try:
        _put(beside, _encode(state), os.O_CREAT | os.O_TRUNC)
    except OSError:
        lenient.discard(beside)
        if not reserve:
            raise
        beside = os.path.join(folder, reserve)
        _put(beside, _fitting(state), 0)  # in place: blocks that are there already
    return beside


def conclude(folder: TaskFolder, state: State) -> None:
    """Write the final state, waiting for room; the lock is held for so long: it is not told yet."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            write_last(folder, state)
            return
        except OSError:
            if time.monotonic() > deadline or not os.path.isdir(folder.path):
                return
            time.sleep(0.5)


def set_aside(folder: TaskFolder) -> None:
    """Keep room for two states; what is kept already stays."""
    for reserve in (FOR_END, FOR_GAP):
        path = os.path.join(folder, reserve)
        if not os.path.exists(path):
            try:
                _put(path, b" " * _RESERVE, os.O_CREAT)
            except OSError:
                lenient.discard(path)  # half of it keeps no room
                raise


def ended(state: State, status: str, now_ns: int, message: str) -> State:
    """The final state; `lost` never hides an exit that is known."""
    known = state["exit_code"] is not None or state["exit_signal"] is not None
    if status == LOST and known:
        status = EXITED
    return {**state, "state": status, "ended_ns": now_ns, "message": message}


def _put(path: str, data: bytes, flags: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o600)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def _encode(state: State) -> bytes:
    return json.dumps(state).encode() + b"\n"


def _fitting(state: State) -> bytes:
    """Encode a state as long as a reserve, with `MAX_GAPS` gaps and letters that take twelve bytes each."""
    return _encode({**state, "message": state["message"][:200]}).ljust(_RESERVE)
