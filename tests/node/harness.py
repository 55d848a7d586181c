"""Starts real tasks in their own state folder, and tracks every process that belongs to them."""

import glob
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.node.base import procs
from orchestrator.node.base.paths import Paths, TaskFolder
from orchestrator.node.task import state, tasks
from tests.polling import poll

PROGRAMS = Path(__file__).parent / "programs"


def until(condition: Callable[[], Any], seconds: float = 60.0, what: str = "") -> Any:
    """Poll a condition; return its true value, or fail after the deadline."""
    value = poll(condition, seconds)
    assert value, f"not within {seconds} s: {what or condition}"
    return value


def unlocked(folder: TaskFolder) -> None:
    """Wait for the end of our own processes."""
    until(lambda: not state.is_locked(folder), what="the lock is free")


class Node:
    """One run on this machine."""

    def __init__(self, paths: Paths, folder: Path) -> None:
        self.paths = paths
        self.folder = folder
        self.run = f"test-{uuid.uuid4().hex[:12]}"

    def start(self, *argv: str, task: str = "worker/0", attempt: str = "1", **spec: Any) -> dict[str, Any]:
        leases = spec.pop("leases", [])
        full = {"argv": list(argv), "env": {}, "cwd": str(self.folder), "grace": 20.0, **spec}
        folder = self.paths.task(self.run, attempt, task)
        claim = tasks.take_claim(folder)
        if not claim:
            return tasks._already(folder)
        try:
            started = tasks.begin(self.paths, folder, full, claim, leases)
        finally:
            for fd in claim:
                os.close(fd)
        with open(started, "rb") as answer:  # noqa: PTH123 - a descriptor
            return tasks.result(folder, answer.read())

    def python(self, program: str, *arguments: str, **spec: Any) -> dict[str, Any]:
        """Start one of `programs/`."""
        return self.start(sys.executable, str(PROGRAMS / program), *arguments, **spec)

    def task(self, task: str = "worker/0", attempt: str = "1") -> TaskFolder:
        return self.paths.task(self.run, attempt, task)

    def state_of(self, task: str = "worker/0", attempt: str = "1") -> state.State:
        return state.read(self.task(task, attempt))

    def log(self, task: str = "worker/0") -> bytes:
        return Path(self.task(task).log).read_bytes()

    def stop(self, grace: float = 20.0, *, kill: bool = False) -> None:
        for folder in self.paths.tasks(self.run):
            state.stop(folder, grace, kill)

    def final(self, task: str = "worker/0", seconds: float = 30.0, attempt: str = "1") -> state.State:
        """Wait for the final state, and check that no process of the task is alive at that moment."""

        def look() -> state.State | None:
            found = self.state_of(task, attempt)
            return found if state.is_final(found) else None

        found: state.State = until(look, seconds, f"{task} is over")
        assert procs.bearers(f"{self.run}/{attempt}/{task}") == []
        return found

    def alone(self) -> None:
        """Check that no process of the run is alive, including our own."""
        for folder in self.paths.tasks(self.run):
            unlocked(folder)
        assert procs.bearers(self.run) == []


def names_in(folder: Path | str) -> list[str]:
    """Return the sorted entries of a folder, or none if it does not exist."""
    return sorted(path.name for path in Path(folder).iterdir()) if Path(folder).is_dir() else []


def link(path: str) -> str:
    return str(Path(path).readlink())


def supervisor_of(leader: int) -> int:
    process = procs.look(leader)
    assert process is not None
    return process.ppid


def guard_of(leader: int) -> int:
    return supervisor_of(supervisor_of(leader))


def kill_together(*pids: int) -> None:
    """Kill processes so that none can react to the end of another."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: all(procs.status(pid) == "T" for pid in pids), what=f"{pids} stand still")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def identities(folder: Path, count: int) -> list[procs.Process]:
    """Return the processes that wrote their pids to `folder/pids`, once there are that many."""

    def look() -> list[procs.Process]:
        found = [procs.look(int(name)) for name in names_in(folder / "pids")]
        return [process for process in found if process] if len(found) >= count else []

    return list(until(look, what=f"{count} processes of the family are up"))


def lives(process: procs.Process) -> bool:
    now = procs.look(process.pid)
    return now is not None and now.start_ticks == process.start_ticks and not now.zombie


def dead(family: list[procs.Process]) -> bool:
    return not any(map(lives, family))


def interpreters() -> list[str]:
    """Return one interpreter for each minor version on this machine."""
    names = [f"python3.{minor}" for minor in range(8, 16)]
    pyenv = os.path.expanduser(os.environ.get("PYENV_ROOT", "~/.pyenv"))  # noqa: PTH111
    found = glob.glob(f"{pyenv}/versions/3.*/bin")  # noqa: PTH207 - skips what it may not read
    places = [*found, os.environ.get("PATH", os.defpath)]
    return [path for name in names if (path := shutil.which(name, path=os.pathsep.join(places)))]
