"""One object that knows every path of a run's folder, and what may be done with it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from orchestrator.errors import RunError, UsageError, expect
from orchestrator.events import validity
from orchestrator.model import Order, RunPlan, TaskId
from orchestrator.names import AttemptName, RunId
from orchestrator.node.base import locks
from orchestrator.node.base.fault import reason
from orchestrator.plainfile import make_folder, open_plain, read_plain, write_atomically
from orchestrator.planning import takeover
from orchestrator.requests import LaunchRequest
from orchestrator.text import plain, utf8
from orchestrator.unbroken import unbroken

MOST = 64 << 20  # bytes of a plan
_MOST_VITALS = 8 << 20
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")  # as JSON writes it
_T = TypeVar("_T")
_D = TypeVar("_D")
NEW = ".new"  # holds the folders that are not whole yet


class CodeRecord(msgspec.Struct, frozen=True):
    """The code of a run, for who compares it with another one's."""

    files: dict[str, str] = {}  # their digests; {} of too many
    commit: str = ""
    branch: str = ""
    diff: str = ""  # to that commit, its beginning


class _Inside:
    """The path of one file or folder inside a run's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, _: type[RunFolder]) -> Path:
        return folder.path / self._name


class RunFolder(Struct, frozen=True):
    """`~/.local/state/orchestrate/runs/<id>/`; 0700, files 0600."""

    root: Path
    id: RunId  # a run's name may come from a node: only what is one leads to a folder

    plan = _Inside("plan.json")
    events = _Inside("events.jsonl")
    request = _Inside("request.json")  # what was launched, for a replay; never sent to hosts
    debug_log = _Inside("debug.log")
    lock = _Inside("keeper.lock")
    control = _Inside("control")
    order = _Inside("order.json")  # in place of the FIFO, to a keeper on another machine
    points = _Inside("points.jsonl")  # of the training, as tasks reported them; thinned
    view = _Inside("view.json")  # how it stands, and after which bytes of the events
    vitals = _Inside("vitals.json")  # what the tasks do right now, for viewers
    notify = _Inside("notify.json")
    metrics = _Inside("metrics.json")  # where they are written to
    code = _Inside("code.json")  # files and git, as they were when they were sent
    page = _Inside("report.html")
    logs = _Inside("logs")
    stacks = _Inside("stacks")  # a file per taking of the tasks' stacks

    @property
    def path(self) -> Path:
        return self.root / self.id

    @property
    def run(self) -> str:
        return str(self.id)

    def read_vitals(self) -> bytes:
        """Empty where nothing can be read."""
        try:
            return read_plain(self.vitals, _MOST_VITALS)
        except OSError:
            return b""

    def write_words(self, file: Path, words: Sequence[str]) -> None:
        """Keep what `--notify` or `--metrics` names; it is of this machine, so that no plan holds it."""
        write_atomically(file, json.dumps(list(words)).encode())

    def read_words(self, file: Path) -> tuple[str, ...]:
        """Return the words that were kept; () when there are none, or they cannot be read."""
        return self._kept(file, tuple[str, ...], ())

    def write_request(self, request: LaunchRequest) -> None:
        write_atomically(self.request, msgspec.json.encode(utf8(msgspec.to_builtins(request))))

    def read_request(self) -> LaunchRequest | None:
        """Return what was launched; None where that was elsewhere, or it cannot be read."""
        return self._kept(self.request, LaunchRequest, None)

    def read_code(self) -> CodeRecord:
        """Nothing where the code was never read, or what was kept of it cannot be."""
        return self._kept(self.code, CodeRecord, CodeRecord())

    def _kept(self, file: Path, kind: type[_T], otherwise: _D) -> _T | _D:
        try:
            return msgspec.json.decode(read_plain(file, MOST), type=kind)
        except (OSError, RecursionError, UsageError, msgspec.MsgspecError):
            return otherwise

    def write_stacks(self, at: float, text: str) -> Path:
        """Keep what was taken at `at` in a file of its own; return its path."""
        self.stacks.mkdir(mode=0o700, exist_ok=True)
        stem = time.strftime("%Y%m%d-%H%M%S", time.localtime(at))
        path = self.stacks / f"{stem}.{int(at % 1 * 1000):03}.txt"
        lines = "\n".join(map(plain, text.split("\n")))
        write_atomically(path, lines.encode("utf-8", "backslashreplace"))
        return path

    def log(self, attempt: str, task: str) -> Path:
        return self._of_task(attempt, task, "log")

    def times(self, attempt: str, task: str) -> Path:
        """(offset, node time in ns) pairs, 16 bytes each, for the bytes of the log."""
        return self._of_task(attempt, task, "idx")

    def report(self, attempt: str, task: str) -> Path:
        return self._of_task(attempt, task, "report.jsonl")

    def _of_task(self, attempt: str, task: str, ending: str) -> Path:
        return self.logs / AttemptName(attempt) / f"{TaskId.parse(task).slug}.{ending}"

    def create(self, plan: RunPlan) -> None:
        """Make the folder, or what is missing of it, with a plan; raise UsageError when it cannot be made."""
        fresh = not os.path.lexists(self.path)
        # Nobody sees a run without its plan: another command may list the runs at any moment.
        making = RunFolder(self.root / NEW, self.id) if fresh else self
        try:
            make_folder(self.root)
            make_folder(making.path)
            making.logs.mkdir(mode=0o700, exist_ok=True)
            making.path.chmod(0o700)
            making.lock.touch(0o600)
            making.events.touch(0o600)
            write_atomically(making.plan, encode_plan(plan))
            if fresh:
                making.path.rename(self.path)
        except OSError as error:
            if fresh:
                shutil.rmtree(making.path, ignore_errors=True)
            raise UsageError(
                f"cannot make the run's folder {self.path}",
                why=reason(error),
                hint="set XDG_STATE_HOME to a folder of yours on a disk with space",
            ) from error

    def write_plan(self, plan: RunPlan) -> None:
        """Replace the plan by one that differs; raise RunError when there is no room for it."""
        data = encode_plan(plan)
        try:
            if not self.plan.exists() or read_plain(self.plan, MOST) != data:
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
            plan = decode_plan(read_plain(self.plan, MOST))
            if plan.run != self.run:
                raise msgspec.ValidationError(f"it is the plan of run {plan.run[:80]!r}")
        except (OSError, msgspec.ValidationError) as error:
            why = str(error) if isinstance(error, msgspec.ValidationError) else error.strerror
            raise UsageError(
                f"run {self.run} cannot be read",
                why=f"{self.plan}: {why}",
                hint=f"`orchestrate stop {self.run}` where the run's hosts.toml is: its hosts know its plan",
            ) from error
        return plan

    def take_lock(self) -> int | None:
        """Become the run's keeper on this machine: the descriptor that holds the lock, or None.

        Raise UsageError where the folder cannot be written, or its disk has no locks.
        """
        try:
            fd = open_plain(self.lock, os.O_RDWR | os.O_CREAT)
            if locks.take(fd):
                return fd
        except OSError as error:
            raise self._not_ours(self.lock, error) from error
        os.close(fd)
        return None

    def _not_ours(self, path: Path, error: OSError) -> UsageError:
        return UsageError(
            f"cannot keep run {self.run} from here",
            why=f"{path}: {error.strerror}",
            hint="make the folder writable; or set XDG_STATE_HOME to another one: with the hosts.toml of "
            "the run it can be kept from there",
        )

    def has_keeper(self) -> bool:
        """Return True while a living keeper holds the run, by its lock and by nothing else."""
        return unbroken(self._has_keeper)  # an interrupt must not leave the lock with us

    def _has_keeper(self) -> bool:
        try:
            fd = open_plain(self.lock, os.O_RDONLY)
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
        """The keeper's end of the control FIFO; held read-write so that it never sees an end.

        Raise UsageError where none can be made.
        """
        try:
            if not self.control.is_fifo():
                os.mkfifo(self.control, 0o600)
            return os.open(self.control, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            raise self._not_ours(self.control, error) from error

    def take_order(self) -> bytes:
        """Return an order that was left here, once; empty when there is none."""
        try:
            data = read_plain(self.order, 4096)
            self.order.unlink()
        except OSError:
            return b""
        return data

    def ask_keeper(self, order: Order, **more: object) -> bool:
        """Put one order to the keeper; False when there is none that listens, or has no room for it."""
        try:
            if not self.control.is_fifo():  # a device may act when it is opened
                return False
            fd = os.open(self.control, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:  # ENXIO: nobody on this machine reads; another one may share this folder with us
            if order in (Order.VITALS, Order.TYPE) or not self.has_keeper():
                return False
            with contextlib.suppress(OSError):
                write_atomically(self.order, json.dumps({"want": order}).encode())
                return True
            return False
        try:
            os.write(fd, json.dumps({"want": order, **more}).encode() + b"\n")
        except OSError:
            return False
        finally:
            os.close(fd)
        return True


# --- plan.json ---


def encode_plan(plan: RunPlan) -> bytes:
    try:
        data = msgspec.json.encode(plan)
    except UnicodeEncodeError:  # a path or a login name that is no UTF-8
        data = msgspec.json.encode(utf8(msgspec.to_builtins(plan)))
    return msgspec.json.format(data) + b"\n"


def decode_plan(data: bytes) -> RunPlan:
    """The inverse; raise `msgspec.ValidationError` for anything that no plan of ours says."""
    with validity():
        plan = msgspec.json.decode(data, type=RunPlan)
        expect(not _NUL.search(data), "a text holds a NUL character")
        takeover.check(plan)
    return plan
