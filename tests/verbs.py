"""Calls of verbs as a user makes them, and runs whose keepers are killed."""

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import command
from tests.exclusive import exclusive
from tests.polling import poll
from tests.processes import has_open, pids

LIMIT = 60.0  # seconds; an upper bound, never a fixed wait


@dataclass(frozen=True)
class Called:
    status: int | None  # None: it did not end
    out: str
    err: str


def call(words: Sequence[str], folder: Path, state: Path) -> Called:
    """Run one command line in a forked process, without Python's startup and imports.

    `clean` would end the orphans that other tests inspect, even those of other clones.
    """
    with exclusive("clean") if words[0] == "clean" else contextlib.nullcontext():
        return _call(words, folder, state)


def _call(words: Sequence[str], folder: Path, state: Path) -> Called:
    out, err = folder / "out", folder / "err"
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    with Path(os.devnull).open("rb") as stdin, out.open("wb") as stdout, err.open("wb") as stderr:
        streams = (stdin.fileno(), stdout.fileno(), stderr.fileno())
        called = command.start(words, folder, environment, streams)
    code: int | None
    try:
        code = called.wait(LIMIT)
    except subprocess.TimeoutExpired:
        called.kill()
        called.wait()
        code = None
    return Called(code, out.read_text(errors="replace"), err.read_text(errors="replace"))


def until(what: str, condition: Callable[[], Any]) -> None:
    assert poll(condition, LIMIT), f"not within {LIMIT:.0f} s: {what}"


def kill_keeper(folder: Path) -> None:
    """Kill the process that holds the run's lock, and wait until the lock is free."""
    for pid in keepers(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for_keeper(folder)


def keepers(folder: Path) -> list[int]:
    """Return the processes that have the run's lock open: one, or none."""
    lock = (folder / "keeper.lock").stat()
    return [pid for pid in pids() if has_open(pid, lock)]


def wait_for_keeper(folder: Path) -> None:
    """Wait until no process holds the run's lock."""

    def free() -> bool:
        try:
            fd = os.open(folder / "keeper.lock", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            os.close(fd)
        return True

    until("the keeper has gone", free)
