"""Long work in a forked child, so that the loop is never blocked; the reply comes back over a pipe.

A child leads a process group of its own. It is ended, with all that it started, when its reply is
here, when its time is over, and (by PDEATHSIG) when the agent is gone for any reason. What is
interrupted gets a moment between TERM and KILL: a user's setup may hold a lock that it removes.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from typing import Callable, Dict, Iterable, Tuple

from ..base import prctl
from ..base.descriptors import close_others, write_all
from ..base.fault import NodeError, reason
from ..base.lenient import FULL
from . import frames
from .loop import READ, Loop, Timer

Reply = Tuple[Dict[str, object], bytes]
Work = Callable[[], Reply]  # its exceptions are replies too
Done = Callable[[Reply], None]

_MOMENT = 0.5  # seconds to clean up in

_MACHINE = (
    *FULL,
    errno.EROFS,
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
)


class Job:
    """One child at work."""

    def __init__(self, name: str, pid: int, pipe: int, done: Done) -> None:
        self.name = name
        self.pid = pid
        self.pipe = pipe
        self.done = done
        self.answer = frames.Decoder()
        self.timer: Timer | None = None


class Jobs:
    """The children of one agent."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._dying: list[int] = []
        self._alive: dict[int, Job] = {}  # by pid

    def run(self, name: str, work: Work, done: Done, *, seconds: float, keep: Iterable[int] = ()) -> int:
        """Do `work` in a child, hand its reply to `done`; it keeps only the descriptors `keep`. Its pid."""
        self._reap()
        prctl.load()
        reader, writer = os.pipe()
        try:
            pid = _fork(work, writer, {*keep, writer})
        except OSError as error:
            os.close(reader)
            raise NodeError(
                "machine",
                f"cannot start a process for `{name}`",
                reason(error),
                "the machine is short of memory, or this user has too many processes (ulimit -u)",
            ) from None
        finally:
            os.close(writer)
        job = Job(name, pid, reader, done)
        self._alive[pid] = job
        os.set_blocking(reader, False)
        self._loop.watch(reader, READ, lambda: self._read(job))
        job.timer = self._loop.after(seconds, lambda: self._expire(job, seconds))
        return pid

    def _read(self, job: Job) -> None:
        try:
            data = os.read(job.pipe, 1 << 20)
            replies = job.answer.feed(data)
        except BlockingIOError:
            return
        if replies:
            _kill(job)
            self._finish(job, replies[0])
        elif not data:
            _kill(job)
            self._finish(job, failure(_vanished(job)))

    def _expire(self, job: Job, seconds: float) -> None:
        error = NodeError(
            "timeout",
            f"`{job.name}` did not end within {seconds:g} s",
            "a disk, a file system or a program does not answer",
        )
        os.kill(job.pid, signal.SIGTERM)  # it ends its group; it is our child, so the pid is its own
        self._loop.after(4 * _MOMENT, lambda: _kill(job) if job.pid in self._dying else None)
        self._finish(job, failure(error))

    def _finish(self, job: Job, reply: Reply) -> None:
        if job.timer is not None:
            job.timer.cancel()
        self._loop.unwatch(job.pipe)
        os.close(job.pipe)
        self._dying.append(job.pid)
        self._alive.pop(job.pid, None)
        self._loop.after(2 * _MOMENT, self._reap)
        job.done(reply)

    def _reap(self) -> None:
        self._dying = [pid for pid in self._dying if os.waitpid(pid, os.WNOHANG)[0] == 0]


def failure(error: BaseException) -> Reply:
    """The reply that carries an error; one that is neither ours nor the machine's is a bug."""
    if isinstance(error, OSError) and error.errno in _MACHINE:
        full = "make room where `state` and `workdir` of this host are: df -h, orchestrate clean"
        hint = full if error.errno in FULL else ""
        error = NodeError("machine", reason(error), str(error.filename or ""), hint)
    if not isinstance(error, NodeError):
        import traceback

        lines = traceback.format_exception(type(error), error, error.__traceback__)
        error = NodeError("bug", f"the agent failed: {error!r}", "".join(lines[-12:]).strip())
    return {"ok": False, "error": error.as_dict()}, b""


def _kill(job: Job) -> None:
    try:
        os.killpg(job.pid, signal.SIGKILL)
    except OSError:
        pass  # it has left no group behind


def _vanished(job: Job) -> NodeError:
    why = "something killed it: often the kernel, when memory is short"
    return NodeError("agent", f"the agent's helper for `{job.name}` vanished", why)


def _fork(work: Work, writer: int, keep: set[int]) -> int:
    agent = os.getpid()
    pid = os.fork()
    if pid:
        _own_group(pid)
        return pid
    try:
        _own_group(0)
        _die_with(agent)
        _forget_descriptors(keep)
        _write(writer, work)
    finally:
        os._exit(0)


def _own_group(pid: int) -> None:
    """Set a child's group, on both sides of the fork, so that neither has to wait for the other."""
    try:
        os.setpgid(pid, 0)
    except OSError:
        pass  # the child has ended already


def _die_with(agent: int) -> None:
    signal.signal(signal.SIGTERM, _end_group)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    prctl.die_with_parent(signal.SIGTERM)
    if os.getppid() != agent:
        os._exit(0)


def _end_group(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    time.sleep(_MOMENT)
    os.killpg(0, signal.SIGKILL)


def _forget_descriptors(keep: set[int]) -> None:
    """Nothing of the agent's is held: neither the way to the controller nor another task's port."""
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    close_others({0, 1, 2, *keep})


def _write(writer: int, work: Work) -> None:
    try:
        header, payload = work()
    except BaseException as error:  # every end of a child is an answer
        header, payload = failure(error)
    try:
        answer = frames.encode(header, payload)
    except ValueError:
        why = f"{len(payload) or len(json.dumps(header)):,} bytes"
        answer = frames.encode(*failure(NodeError("agent", "has more to say than a message can hold", why)))
    write_all(writer, answer)
