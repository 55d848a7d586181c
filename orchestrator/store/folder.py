"""One object that knows every path of a run's folder, and what may be done with it."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.errors import OrchestrateError, RunError, UsageError
from orchestrator.model import RunPlan

_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"  # none that look alike; in the order in which they sort
_RESERVE = 65_536  # bytes
_NAMED = 8  # runs, the newest, when a word means too many


def runs_root() -> Path:
    """Where runs live: $XDG_STATE_HOME/orchestrate/runs (XDG base directory specification)."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = state if state.is_absolute() else Path.home() / ".local" / "state"
    return base / "orchestrate" / "runs"


def new_run_id(now: float) -> str:
    """`20261121-0102-k7pq`: sorts by age, the last part alone names it."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    fraction = divmod(int(now % 1 * len(_LETTERS) ** 2), len(_LETTERS))  # of the second: to the millisecond
    time_of = "".join(_LETTERS[number] for number in fraction)
    return f"{stamp}-{time_of}{''.join(secrets.choice(_LETTERS) for _ in range(2))}"


@dataclass(frozen=True)
class RunFolder:
    """`~/.local/state/orchestrate/runs/<id>/`; 0700, files 0600."""

    path: Path

    @property
    def run(self) -> str:
        return self.path.name

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def debug_log(self) -> Path:
        return self.path / "debug.log"

    @property
    def lock(self) -> Path:
        return self.path / "keeper.lock"

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def reserve(self) -> Path:
        """Room for the last events on a disk that is full."""
        return self.path / "reserve"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def stacks(self) -> Path:
        """A file per taking of the tasks' stacks."""
        return self.path / "stacks"

    def write_stacks(self, at: float, text: str) -> Path:
        """Keep what was taken at `at` in a file of its own; return its path."""
        self.stacks.mkdir(mode=0o700, exist_ok=True)
        stem = time.strftime("%Y%m%d-%H%M%S", time.localtime(at))
        for number in itertools.count(1):
            path = self.stacks / (f"{stem}.txt" if number == 1 else f"{stem}-{number}.txt")
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                continue
            with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            return path
        raise AssertionError

    def log(self, attempt: str, slug: str) -> Path:
        return self.logs / attempt / f"{slug}.log"

    def times(self, attempt: str, slug: str) -> Path:
        """(offset, node time in ns) pairs, 16 bytes each, for the bytes of the log."""
        return self.logs / attempt / f"{slug}.idx"

    def report(self, attempt: str, slug: str) -> Path:
        return self.logs / attempt / f"{slug}.report.jsonl"

    def create(self, plan: RunPlan) -> None:
        """Make the folder, or what is missing of it, with a plan; raise UsageError when it cannot be made."""
        fresh = not self.path.exists()
        try:
            self.logs.mkdir(parents=True, mode=0o700, exist_ok=True)
            self.path.chmod(0o700)
            self.lock.touch(0o600)
            self.events.touch(0o600)
            self.reserve.touch(0o600)
            self.reserve.write_bytes(b"\n" * _RESERVE)
            write_atomically(self.plan, _encoded(plan))
        except OSError as error:
            if fresh:
                shutil.rmtree(self.path, ignore_errors=True)
            raise UsageError(
                f"cannot make the run's folder {self.path}",
                why=error.strerror or str(error),
                hint="set XDG_STATE_HOME to a folder of yours on a disk with space",
            ) from error

    def write_plan(self, plan: RunPlan) -> None:
        """Replace the plan by one that differs; raise RunError when there is no room for it."""
        data = _encoded(plan)
        try:
            if self.plan.read_bytes() != data:
                write_atomically(self.plan, data)
        except OSError as error:
            raise RunError(
                f"cannot write the plan of run {self.run}",
                why=f"{self.plan}: {error.strerror}",
                hint="make room on this machine, then launch again",
            ) from error

    def read_plan(self) -> RunPlan:
        """Raise UsageError when there is no plan that can be read."""
        try:
            return decode_plan(self.plan.read_bytes())
        except (OSError, msgspec.ValidationError, msgspec.DecodeError) as error:
            raise UsageError(
                f"run {self.run} has no readable plan",
                why=str(error),
                hint="`orchestrate runs` lists the runs that can be followed",
            ) from error

    def take_lock(self) -> int | None:
        """Become the run's keeper on this machine: the descriptor that holds the lock, or None.

        Raise UsageError where the folder cannot be written.
        """
        try:
            fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(
                f"cannot keep run {self.run} from here",
                why=f"{self.lock}: {error.strerror}",
                hint="make the folder writable; or set XDG_STATE_HOME to another one: with the hosts.toml of "
                "the run it can be kept from there",
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return None
        return fd

    def has_keeper(self) -> bool:
        """Whether a living keeper holds the run, by its lock and by nothing else."""
        try:
            fd = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look do not take us for one
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def open_control(self) -> int:
        """The keeper's end of the control FIFO; held read-write so that it never sees an end."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISFIFO(self.control.stat().st_mode):
                self.control.unlink()
        if not self.control.exists():
            os.mkfifo(self.control, 0o600)
        return os.open(self.control, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def ask_keeper(self, request: dict[str, Any]) -> bool:
        """Put one request to the keeper; False when there is none that listens."""
        try:
            fd = os.open(self.control, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # ENXIO: nobody reads
            return False
        try:
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                return False
            os.write(fd, json.dumps(request).encode() + b"\n")
        except OSError:
            return False
        finally:
            os.close(fd)
        return True


def _encoded(plan: RunPlan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(plan)) + b"\n"


def decode_plan(data: bytes) -> RunPlan:
    return msgspec.json.decode(data, type=RunPlan)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file as a whole, 0600; a reader sees the old or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def runs(root: Path | None = None) -> Iterator[RunFolder]:
    """Every run of this machine, the newest first; raise UsageError when they cannot be listed."""
    base = root or runs_root()
    for path in sorted(folders(base), reverse=True):
        # os.path: of somebody else's folder (a launch with sudo, once) nobody may tell us what is in it.
        if os.path.exists(path / "plan.json"):  # noqa: PTH110
            yield RunFolder(path)


def folders(base: Path) -> list[Path]:
    """The folders of runs below a root, whole or not; raise UsageError when that cannot be read."""
    try:
        return [entry for entry in base.iterdir() if not entry.name.startswith(".") and entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(
            f"cannot read {base}, where this machine keeps its runs",
            why=error.strerror or str(error),
            hint="make it a folder of yours, or set XDG_STATE_HOME to another one",
        ) from error


def find(wanted: str | None, root: Path | None = None) -> RunFolder | None:
    """The run that an id, its start, its last part or its --name means; None for the newest.

    Return None when there is no such run here; raise UsageError when several match.
    """
    found = list(runs(root))
    if wanted is None:
        return found[0] if found else None
    matches = [folder for folder in found if matches_run(folder.run, wanted)]
    if len(matches) != 1:  # `--name 2026` is a name, though many ids begin like that
        matches = named(wanted, root)[:1] or matches
    if len(matches) > 1:
        raise ambiguous(wanted, [folder.run for folder in matches])
    return matches[0] if matches else None


def named(name: str, root: Path | None = None) -> list[RunFolder]:
    """The runs of a --name, the newest first."""
    return [folder for folder in runs(root) if _name(folder) == name]


def ambiguous(wanted: str, runs: Sequence[str]) -> UsageError:
    more = len(runs) - _NAMED
    return UsageError(
        f"{len(runs)} runs match {wanted!r}",
        why=", ".join(sorted(runs, reverse=True)[:_NAMED]) + (f" and {more} more" if more > 0 else ""),
        hint="write more of the id, or only its last part",
    )


def matches_run(run: str, wanted: str) -> bool:
    return run.startswith(wanted) or run.rsplit("-", 1)[-1] == wanted


def _name(folder: RunFolder) -> str:
    try:
        return folder.read_plan().name
    except OrchestrateError:
        return ""
