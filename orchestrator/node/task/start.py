"""Starts a task so that it outlives us: claim, guard, supervisor, exec, and the result as data."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import time
from typing import Any, Callable, Mapping, NamedTuple

from ..base import lenient, prctl, procs
from ..base.descriptors import close_others
from ..base.fault import NodeError
from ..base.paths import Paths, TaskFolder, make_private
from ..disk.removing import remove
from ..hook import site as site_rules
from . import control, environ, state, supervisor
from .environ import Handles, Launch

PATIENCE = 30.0  # seconds for exec; a network file system may take its time

_STOPPED = "a user has stopped the run"
_PIPE_SIZE = 256 << 10  # 64 tasks of one user stay far below the 64 MiB that pipes of a user may take


def start(  # noqa: PLR0917 - named by the protocol
    paths: Paths, run: str, attempt: str, task: str, spec: Mapping[str, Any], lease_fds: list[int]
) -> dict[str, Any]:
    """Start a task once: a second start says `already`. Raise NodeError when its program cannot start.

    `lease_fds` are locks that shall be held for as long as the task lives.
    """
    folder = paths.task(run, attempt, task)
    prctl.load()
    launch = _launch(paths, folder, spec)
    claimed = take_claim(folder)
    if claimed is None:
        found = control.settle(folder)
        return {"started": False, "already": True, "pid": found["pid"], "state": found}
    try:
        # With the claim in hand: whoever stops the run forbids it first, and then looks for claims.
        if is_forbidden(paths, run):
            _withdraw(folder)
            raise forbidden(run)
        answer = _run_guarded(launch, claimed, lease_fds)
    except OSError as error:
        answer = {"error": supervisor.cannot_fork(launch, error)}
    finally:
        claimed.close()
    return _result(launch, answer)


def is_forbidden(paths: Paths, run: str) -> bool:
    """Return True if a user has stopped the run."""
    return os.path.exists(paths.stopped(run))


def forbidden(run: str) -> NodeError:
    return NodeError("stopped", f"starts nothing of run {run} any more", _STOPPED)


def _withdraw(folder: TaskFolder) -> None:
    """Conclude a task that was claimed too late."""
    found = {**state.read(folder), "want": state.WANT_STOP}
    state.conclude(folder, state.ended(found, state.UNSTARTED, time.time_ns(), _STOPPED))


def _launch(paths: Paths, folder: TaskFolder, spec: Mapping[str, Any]) -> Launch:
    marks = environ.marks(folder.run, folder.attempt, folder.task, os.urandom(8).hex(), folder.report)
    shows = spec.get("stacks", True)
    site = site_rules.install(paths) if shows or site_rules.asked_for(spec) else None
    if site is not None and shows:
        marks.update(site_rules.mark(folder))
    argv, env = environ.of_task(spec, marks)
    if site is not None:
        site_rules.put_first(env, site)
    return Launch(
        paths=paths,
        folder=folder,
        argv=argv,
        env=env,
        cwd=os.path.join(os.path.expanduser("~"), os.path.expanduser(spec.get("cwd") or "~")),
        grace=float(spec.get("grace") or 0.0),
        endless=bool(spec.get("endless")),
        lifeline=spec.get("lifeline") or None,
        fence=spec.get("fence") or None,
        log_cap=spec.get("log_cap") or None,
    )


def _run_guarded(launch: Launch, claimed: Claim, lease_fds: list[int]) -> dict[str, Any]:
    """Fork the guard and wait for the supervisor's answer; {} when none came."""
    heard, said = os.pipe()
    log_read, log_write = os.pipe()
    handles = Handles(claimed.lock, claimed.control, log_read, log_write, said, list(lease_fds))
    try:
        try:
            lenient.enlarge(log_write, _PIPE_SIZE)
            _detach(lambda: supervisor.guard(launch, handles), handles.all())
        finally:
            for fd in (log_read, log_write, said):
                os.close(fd)
        return _hear(heard)
    finally:
        os.close(heard)


def _detach(main: Callable[[], object], keep: list[int]) -> None:
    """Run `main` in a process of its own session that is no child of ours, with only `keep` open.

    Raise OSError when no process can be made.
    """
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        between = os.fork()
        if between == 0:
            try:
                os.setsid()
                if os.fork() == 0:
                    _let_go(keep)
                    main()
                os._exit(0)
            finally:
                os._exit(1)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    try:
        status = os.waitpid(between, 0)[1]
    except ChildProcessError:
        return  # our caller ignores SIGCHLD, or reaps for us
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:  # killed, it may have forked before
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _let_go(keep: list[int]) -> None:
    """Close what the caller had open: its protocol channel would stay open with us."""
    signal.set_wakeup_fd(-1)  # the caller's; its number may soon be another file's
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would reap for us
    os.chdir("/")
    close_others({0, 1, 2, *keep})
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if null > 2:
        os.close(null)
    for fd in keep:
        os.set_inheritable(fd, False)


def _hear(heard: int) -> dict[str, Any]:
    data = b""
    deadline = time.monotonic() + PATIENCE
    poll = select.poll()
    poll.register(heard, select.POLLIN)
    while not data.endswith(b"\n"):
        if not poll.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            return {"late": True}
        piece = os.read(heard, 65536)
        if not piece:
            return {}
        data += piece
    answer: dict[str, Any] = json.loads(data)
    return answer


def _result(launch: Launch, answer: dict[str, Any]) -> dict[str, Any]:
    folder = launch.folder
    if "state" in answer:
        found = answer["state"]
        return {"started": True, "already": False, "pid": found["pid"], "state": found}
    if "error" in answer:
        raise NodeError("start", **answer["error"])
    if "late" in answer:
        control.stop(folder, 0.0, kill=True)
        raise NodeError(
            "start",
            f"{folder.task} did not start within {PATIENCE:g} s",
            f"the file system of its program or of {launch.cwd} does not answer",
            "look at the mounts of that machine",
        )
    control.wait_until_over(folder, 5.0)
    found = control.settle(folder)
    raise NodeError("start", f"{folder.task} was lost while it was started", found["message"])


class Claim(NamedTuple):
    """Descriptors that the claimer holds open and hands on to guard and supervisor."""

    lock: int
    control: int

    def close(self) -> None:
        for fd in self:
            if fd >= 0:
                os.close(fd)


def take_claim(folder: TaskFolder) -> Claim | None:
    """Make the task's folder with its lock held and its FIFO open; None when it is taken.

    It is made beside its place and renamed: whoever sees it sees all of it, and never a free lock.
    """
    parent = os.path.dirname(folder.path)
    made = folder._replace(path=os.path.join(parent, f".{folder.slug}.{os.urandom(6).hex()}"))
    claim = Claim(-1, -1)
    try:
        make_private(parent)
        os.mkdir(made.path, 0o700)
        claim = claim._replace(lock=_locked(made.lock))
        os.mkfifo(made.control, 0o600)
        claim = claim._replace(control=os.open(made.control, os.O_RDWR | os.O_NONBLOCK))
        for path in (made.log, made.idx, made.report):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        state.set_aside(made)
        state.write(made, state.new(folder, procs.incarnation(), time.time_ns()))
        os.rename(made.path, folder.path)
    except OSError as error:
        claim.close()
        remove(made.path)  # what cannot be removed stays hidden and harmless
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY) and os.path.exists(folder.path):
            return None
        raise NodeError(
            "state",
            f"the folder of {folder.task} cannot be made",
            f"{folder.path}: {error.strerror or error}",
            "make room there, or set `state` to a folder on another local disk",
        ) from None
    return claim


def _locked(path: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd
