"""Calls of verbs as a user makes them, and runs whose keepers are killed."""

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import command
from tests.exclusive import exclusive
from tests.polling import poll
from tests.processes import holder, openers, send

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
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    with exclusive("clean") if words[0] == "clean" else contextlib.nullcontext():
        return Called(*command.nursery(environment).ended(words, folder, environment, LIMIT))


def runs_in(state: Path) -> set[str]:
    folder = state / "orchestrate" / "runs"
    return {name for name in os.listdir(folder) if name[0] != "."} if folder.is_dir() else set()


def launch(words: Sequence[str], folder: Path, state: Path, status: int = 0) -> str:
    """Launch a run, and return its id once it has ended, or with --detach once it has started."""
    before = runs_in(state)
    called = call(["launch", "--skip-preflight", "--no-validate", *words], folder, state)
    assert called.status == status, called
    return (runs_in(state) - before).pop()


def until(what: str, condition: Callable[[], Any]) -> None:
    assert poll(condition, LIMIT), f"not within {LIMIT:.0f} s: {what}"


def kill_keeper(folder: Path) -> None:
    """Kill the process that holds the run's lock, and wait until the lock is free."""
    send(signal.SIGKILL, openers(folder / "keeper.lock"))
    wait_for_keeper(folder)


def wait_for_keeper(folder: Path) -> None:
    """Wait until no process holds the run's lock."""
    until("the keeper has gone", lambda: not holder(folder / "keeper.lock"))
