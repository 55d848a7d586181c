"""Asks about a task and asks it to end, from any process of the same user on the same machine."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from typing import Iterable, Iterator

from ..base import ending, locks, procs
from ..base.fault import NodeError
from ..base.paths import TaskFolder
from . import state


class UnknownTaskError(NodeError):
    """A task that has no state here: others may remove a run at any moment, and an `rm` may be cut short."""


def is_locked(folder: TaskFolder) -> bool:
    """Return True if a guard or supervisor holds the task's lock; a pid file could lie."""
    return locks.is_taken(folder.lock)


def has_ended(folder: TaskFolder) -> bool:
    """Return True if it has its final state, or none any more."""
    try:
        return state.is_final(state.read(folder))
    except FileNotFoundError:
        return True


def settle(folder: TaskFolder) -> state.State:
    """The state, made true first: with the lock free and no final state, both our processes were killed.

    Then what is left of the task is killed by its cookie and `lost` is written. Raise UnknownTaskError,
    or UnkillableError.
    """
    found = _read(folder)
    while not state.is_final(found):
        if is_locked(folder):
            return _read(folder)
        found = _bury(folder)
    return found


def stop(folder: TaskFolder, grace: float, kill: bool) -> bool:
    """Ask a task to end; False when it has ended already, or was removed. Raise UnkillableError."""
    try:
        found = settle(folder)
    except UnknownTaskError:
        return False
    if state.is_final(found):
        return False
    _ask(folder, _request(kill, grace))
    return True


def _request(kill: bool, grace: float) -> bytes:
    """One line of the control FIFO; short enough to be written in one piece."""
    want = {"want": state.WANT_KILL} if kill else {"want": state.WANT_STOP, "grace": grace}
    return json.dumps(want).encode() + b"\n"


def requests(data: bytes) -> Iterator[tuple[str, float]]:
    """(want, grace) of each line that is a request; anybody may have written the others."""
    for line in data.split(b"\n"):
        try:
            asked = json.loads(line)
            yield str(asked["want"]), float(asked.get("grace", 0.0))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue


def wait_until_over(folder: TaskFolder, patience: float) -> bool:
    """Wait for the lock to be free."""
    deadline = time.monotonic() + patience
    while is_locked(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _ask(folder: TaskFolder, line: bytes) -> None:
    """Write to the control FIFO; without a reader the guard is ending the task already."""
    try:
        fd = os.open(folder.control, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT):
            return
        raise
    try:
        os.write(fd, line)
    except (BlockingIOError, BrokenPipeError):
        pass  # full: it was asked often enough
    finally:
        os.close(fd)


def _bury(folder: TaskFolder) -> state.State:
    """Take the lock, kill by cookie, then write `lost`."""
    try:
        fd = os.open(folder.lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _unknown(folder) from None
    try:
        if not locks.take(fd):
            time.sleep(0.005)  # another one looks, or settles it
            return _read(folder)
        found = _read(folder)
        if not state.is_final(found):
            ending.sweep(f"{folder.run}/{folder.attempt}/{folder.task}")
            found = _restarted(found)
            found = state.ended(found, state.LOST, time.time_ns(), _why(found))
            try:
                state.write_last(folder, found)
            except OSError:
                pass  # no room: whoever looks next finds the same
        return found
    finally:
        os.close(fd)


def _restarted(found: state.State) -> state.State:
    """Add the time since which this machine runs to a state, if that is another life of it."""
    same = found["incarnation"] == procs.incarnation()
    return found if same else {**found, "restarted_ns": procs.began_ns()}


def _why(found: state.State) -> str:
    if found.get("restarted_ns"):
        same = found["incarnation"].split("/")[0] == procs.incarnation().split("/")[0]
        return "its container was restarted" if same else "the machine was restarted"
    return "its supervisor and its guard were killed together"


def _read(folder: TaskFolder) -> state.State:
    try:
        return state.read(folder)
    except FileNotFoundError:
        raise _unknown(folder) from None


def _unknown(folder: TaskFolder) -> UnknownTaskError:
    what = f"there is no {folder.task} of run {folder.run}, attempt {folder.attempt}"
    return UnknownTaskError("task", what, "it was never started here, or was removed")


NAMES = ("orch-guard", "orch-supervisor")


def wake(folders: Iterable[TaskFolder]) -> None:
    """Let guards and supervisors go on that somebody has stopped: without them no request is heard."""
    ours = {os.path.realpath(folder.lock) for folder in folders}
    for process in procs.scan():
        if procs.name(process.pid) in NAMES and any(
            path in ours for _, path in procs.open_files(process.pid)
        ):
            # To one that runs, too: it takes back a stop that has not been heard yet (signal(7)).
            ending.try_to_send(process, signal.SIGCONT)
