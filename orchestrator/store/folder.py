"""A run's folder: every path in it, and every operation on it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import asdict, replace

from orchestrator.errors import SPENT, RunError, UsageError, expect
from orchestrator.events import validity
from orchestrator.model import Order, RunPlan, TaskId, TaskSpec
from orchestrator.names import AttemptName, RunId
from orchestrator.node.base import locks
from orchestrator.node.base.fault import reason
from orchestrator.plainfile import make_folder, open_plain, read_plain, write_atomically
from orchestrator.planning import takeover
from orchestrator.planning.environ import TF_CONFIG
from orchestrator.planning.plan import tf_config
from orchestrator.requests import LaunchRequest
from orchestrator.run.view import Vitals
from orchestrator.text import READING, json_of, plain
from orchestrator.unbroken import unbroken
from orchestrator.value import Value

MOST = 64 << 20  # bytes of a plan
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")  # as JSON writes it
_T = TypeVar("_T")
NEW = ".new"  # contains folders that are not complete yet


class CodeRecord(Value):
    """The code of a run, for comparisons with other runs."""

    files: Mapping[str, str] = {}  # their digests; {} if there are too many
    commit: str = ""
    branch: str = ""
    diff: str = ""  # the beginning of the diff to that commit


class _Inside:
    """The path of one file or folder inside a run's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, _: type[RunFolder]) -> Path:
        return folder.path / self._name


class RunFolder(Value):
    """`~/.local/state/orchestrate/runs/<id>/`; 0700, files 0600."""

    root: Path
    id: RunId  # a node may supply a run's name: only a valid one leads to a folder

    plan = _Inside("plan.json")
    events = _Inside("events.jsonl")
    request = _Inside("request.json")  # the request, for a replay; never sent to hosts
    debug_log = _Inside("debug.log")
    lock = _Inside("keeper.lock")
    control = _Inside("control")
    order = _Inside("order.json")  # instead of the FIFO, for a keeper on another machine
    points = _Inside("points.jsonl")  # of the training, as tasks reported them; thinned out
    usage = _Inside("usage.jsonl")  # processors and memory in use by the tasks of each host, as points
    view = _Inside("view.json")  # the run's state, and the bytes of events it covers
    vitals = _Inside("vitals.json")  # current activity of the tasks, for viewers
    code = _Inside("code.json")  # files and git state when they were sent
    page = _Inside("report.html")
    pages = _Inside("runs.html")  # of this run and others
    logs = _Inside("logs")
    stacks = _Inside("stacks")  # one file per collection of the tasks' stacks

    @property
    def path(self) -> Path:
        return self.root / self.id

    @property
    def run(self) -> str:
        return str(self.id)

    def read_vitals(self) -> Vitals | None:
        return self._kept(self.vitals, Vitals)

    def write_request(self, request: LaunchRequest) -> None:
        write_atomically(self.request, json_of(request))

    def read_request(self) -> LaunchRequest | None:
        """Return the request; None if the run was launched elsewhere, or it cannot be read."""
        return self._kept(self.request, LaunchRequest)

    def read_code(self) -> CodeRecord:
        """Return nothing if the code was never read, or its record cannot be."""
        return self._kept(self.code, CodeRecord) or CodeRecord()

    def _kept(self, file: Path, kind: type[_T]) -> _T | None:
        try:
            data = read_plain(file, MOST)
            with READING:
                return msgspec.json.decode(data, type=kind)
        except (OSError, RecursionError, UsageError, msgspec.MsgspecError):
            return None

    def write_stacks(self, at: float, text: str) -> Path:
        """Store stacks collected at `at` in a file of their own; return its path."""
        self.stacks.mkdir(mode=0o700, exist_ok=True)
        stem = time.strftime("%Y%m%d-%H%M%S", time.localtime(at))
        path = self.stacks / f"{stem}.{int(at % 1 * 1000):03}.txt"
        lines = "\n".join(map(plain, text.split("\n")))
        write_atomically(path, lines.encode("utf-8", "backslashreplace"))
        return path

    def log(self, attempt: str, task: str) -> Path:
        return self._of_task(attempt, task, "log")

    def times(self, attempt: str, task: str) -> Path:
        """Return (offset, node time in ns) pairs, 16 bytes each, for the bytes of the log."""
        return self._of_task(attempt, task, "idx")

    def report(self, attempt: str, task: str) -> Path:
        return self._of_task(attempt, task, "report.jsonl")

    def _of_task(self, attempt: str, task: str, ending: str) -> Path:
        return self.logs / AttemptName(attempt) / f"{TaskId.parse(task).slug}.{ending}"

    def claim(self, plan: RunPlan) -> bool:
        """Create the folder of a new run; return False if another launch has the same ID.

        Raise UsageError if that fails.
        """
        making = self.root / NEW / self.id
        try:
            make_folder(making.parent)
            making.mkdir(0o700)
        except OSError as error:
            if isinstance(error, FileExistsError) and making.parent.is_dir():  # and not a file
                return False
            raise self._uncreated(error) from error
        if os.path.lexists(self.path):
            making.rmdir()
            return False
        self.create(plan)
        return True

    def create(self, plan: RunPlan) -> None:
        """Create the folder, or what is missing of it, with a plan; raise UsageError if that fails."""
        fresh = not os.path.lexists(self.path)
        # A run is never visible without its plan: another command may list the runs at any moment.
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
            raise self._uncreated(error) from error

    def _uncreated(self, error: OSError) -> UsageError:
        hint = "set XDG_STATE_HOME to a folder of yours on a disk with space"
        return UsageError(f"cannot make the run's folder {self.path}", why=reason(error), hint=hint)

    def write_plan(self, plan: RunPlan) -> None:
        """Replace a plan that differs; raise RunError if there is no room."""
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
        """Raise UsageError if there is no readable plan."""
        try:
            plan = decode_plan(read_plain(self.plan, MOST))
            if plan.run != self.run:
                raise msgspec.ValidationError(f"it is the plan of run {plan.run[:80]!r}")
        except (OSError, msgspec.ValidationError) as error:
            why = str(error) if isinstance(error, msgspec.ValidationError) else error.strerror
            raise UsageError(
                f"run {self.run} cannot be read",
                why=f"{self.plan}: {why}",
                hint=f"`orchestrate stop {self.run}` where the run's hosts.toml is: its hosts have its plan",
            ) from error
        return plan

    def take_lock(self) -> int | None:
        """Become the run's keeper on this machine: return the descriptor that holds the lock, or None.

        Raise UsageError if the folder cannot be written, or its file system has no locks.
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
        """Return True while a living keeper holds the run, determined by its lock alone."""
        return unbroken(self._has_keeper)  # an interrupt must not leave the lock with us

    def _has_keeper(self) -> bool:
        try:
            fd = open_plain(self.lock, os.O_RDONLY)
        except OSError as error:
            return error.errno in SPENT  # what cannot be checked must be neither taken over nor removed
        try:
            # Shared: two processes that check must not mistake each other for a keeper.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def open_control(self) -> int:
        """Return the keeper's end of the control FIFO, opened read-write so that it never ends.

        Raise UsageError if it cannot be created.
        """
        try:
            if not self.control.is_fifo():
                os.mkfifo(self.control, 0o600)
            return os.open(self.control, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            raise self._not_ours(self.control, error) from error

    def take_order(self) -> bytes:
        """Return an order that was stored here, once; empty if there is none."""
        try:
            data = read_plain(self.order, 4096)
            self.order.unlink()
        except OSError:
            return b""
        return data

    def ask_keeper(self, order: Order, **more: object) -> bool:
        """Send one order to the keeper; return False if none listens, or its queue is full."""
        try:
            if not self.control.is_fifo():  # opening a device may have an effect
                return False
            fd = os.open(self.control, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:  # ENXIO: no reader on this machine; one on another machine may share this folder
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


class _StoredPlan(RunPlan, kw_only=True):
    task_env: Mapping[str, str] = {}  # the variables that all tasks share


def encode_plan(plan: RunPlan) -> bytes:
    """Return a plan as JSON, where variables that all tasks share are written once.

    Each TF_CONFIG, which contains the whole cluster, is empty in it.
    """
    envs = [
        {name: "" if name == TF_CONFIG else value for name, value in spec.env.items()} for spec in plan.tasks
    ]
    shared = {
        name: value
        for first in envs[:1]
        for name, value in first.items()
        if all(env.get(name) == value for env in envs)
    }
    tasks = [
        replace(spec, env={name: value for name, value in env.items() if name not in shared})
        for spec, env in zip(plan.tasks, envs, strict=True)
    ]
    stored = _StoredPlan(**{**asdict(plan), "tasks": tuple(tasks)}, task_env=shared)
    return msgspec.json.format(json_of(stored)) + b"\n"


def decode_plan(data: bytes) -> RunPlan:
    """Return the plan that was encoded; raise `msgspec.ValidationError` for anything else."""
    with validity():
        with READING:
            fields = asdict(msgspec.json.decode(data, type=_StoredPlan))
        expect(not _NUL.search(data), "a text holds a NUL character")
        shared = fields.pop("task_env")
        plan = RunPlan(**fields)
        takeover.check(plan)
    cluster = json.dumps(plan.cluster)

    def whole(spec: TaskSpec) -> TaskSpec:
        env = {**shared, **spec.env}
        return replace(spec, env={**env, TF_CONFIG: tf_config(cluster, spec.id)} if TF_CONFIG in env else env)

    return replace(plan, tasks=tuple(map(whole, plan.tasks)))
