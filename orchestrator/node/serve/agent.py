"""Serves one controller over two descriptors, in one thread that never blocks.

It owns nothing that outlives it except the tasks, which run under guards of their own.

Slow work is done in a forked child, and the reply comes back over a pipe. A child leads a process group of
its own. It is ended, with everything that it started, when its reply has arrived, when its time is over, and
(by PDEATHSIG) when the agent is gone for any reason. Interrupted work gets a moment between TERM and KILL: a
user's setup may hold a lock that it removes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, Iterable, Tuple

from ..base import lenient, procs
from ..base import paths as state_folder
from ..base.descriptors import close_others, write_all
from ..base.fault import NodeError, exhausted, no_process, reason
from ..base.paths import Paths
from . import frames
from .frames import Frame, Json
from .loop import READ, Loop, Outbox

Reply = Tuple[Dict[str, object], bytes]
Work = Callable[[], Reply]  # its exceptions are replies too
Done = Callable[[Reply], None]

IDLE = 120.0  # seconds without a byte from the controller after which that counts as gone
READ_SIZE = 1 << 20


class Request(Dict[str, Any]):
    """One message of the controller: its fields, and its payload."""

    def __init__(self, fields: Json, payload: bytes) -> None:
        super().__init__(fields)
        self.id, self.op, self.payload = fields.get("id"), fields.get("op", ""), payload


class Agent:
    """The loop, the connection, the state folder, and each room's own data, as operations see them."""

    def __init__(
        self, config: Json, stdin: int, stdout: int, answer: Callable[[Agent, Request], None]
    ) -> None:
        self.loop = Loop()
        self.outbox = Outbox(self.loop, stdout, self.leave)
        self.jobs = Jobs(self.loop)
        self.leases: dict[int, int] = {}  # port -> its lock, a descriptor
        self.rooms: dict[str, Any] = {}  # what an operation keeps between requests
        self.keepers: dict[str, int] = {}  # run -> its keeper file, opened for our controller
        self._stdin = stdin
        self._answer = answer
        self._idle = float(config.get("idle") or IDLE)
        self._last_message = time.monotonic()
        self._decoder = frames.Decoder()
        self._running = True
        self.failed = False  # the input was not from a controller of ours
        self._paths: Paths | None = None
        self.state_error: NodeError | None = None
        try:
            self._paths = state_folder.open_root(config.get("state"))
        except NodeError as error:
            self.state_error = error

    @property
    def paths(self) -> Paths:
        """Return the state folder; raise the error that hello reported if it is unusable."""
        if self._paths is None:
            raise self.state_error or NodeError("state", "there is no state folder")
        return self._paths

    @property
    def state(self) -> str | None:
        """Return the path of the state folder; None if it is unusable."""
        return None if self._paths is None else self._paths.root

    def send(self, header: Json, payload: bytes = b"") -> None:
        self.outbox.put(frames.encode(header, payload))

    def reply(self, request: Request, result: Json) -> None:
        self.send({"id": request.id, "ok": True, "result": result})

    def fail(self, request: Request, error: BaseException) -> None:
        self.send({"id": request.id, **failure(error)[0]})

    def in_child(self, request: Request, work: Callable[[], Any], *, seconds: float) -> None:
        """Reply with what `work` returns (a result, or a result and a payload) from a child."""

        def answer() -> Frame:
            made = work()
            result, payload = made if isinstance(made, tuple) else (made, b"")
            return {"ok": True, "result": result}, payload

        def done(reply: Frame) -> None:
            self.send({"id": request.id, **reply[0]}, reply[1])

        self.jobs.run(request.op, answer, done, seconds=seconds)

    def leave(self) -> None:
        self._running = False

    def serve(self, requests: bytes = b"") -> None:
        """Serve until the controller closes our stdin, cannot be written to, or is silent for too long."""
        os.set_blocking(self._stdin, False)
        self.loop.watch(self._stdin, READ, self._hear)
        self._look_whether_idle()
        self._take(requests)
        while self._running:
            self.loop.step()

    def _look_whether_idle(self) -> None:
        remaining = self._last_message + self._idle - time.monotonic()
        if remaining <= 0:
            self.leave()
        else:
            self.loop.after(remaining, self._look_whether_idle)

    def _hear(self) -> None:
        try:
            data = os.read(self._stdin, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.leave()
            return
        self._last_message = time.monotonic()
        for fd in self.keepers.values():
            lenient.touch(fd)  # the lifelines of the tasks check its time
        self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            requests = list(self._decoder.feed(data))
        except ValueError as error:
            print(f"the agent exits: its controller does not speak our protocol: {error}", file=sys.stderr)
            self.failed = True
            self.leave()
            return
        for request in (Request(*frame) for frame in requests):
            try:
                self._answer(self, request)
            except Exception as error:  # one bad request must not end the others
                self.fail(request, error)


# --- its children ---

_MOMENT = 0.5  # seconds for cleaning up


class Job:
    """One child at work, until its pipe is closed."""

    def __init__(self, name: str, pid: int, pipe: int, done: Done) -> None:
        self.name = name
        self.pid = pid
        self.pipe = pipe
        self.done = done
        self.answer = frames.Decoder()


class Jobs:
    """The children of one agent."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._dying: list[int] = []

    def run(self, name: str, work: Work, done: Done, *, seconds: float, keep: Iterable[int] = ()) -> int:
        """Do `work` in a child with only the descriptors `keep`, pass its reply to `done`; return its pid."""
        self._reap()
        procs.load()
        reader, writer = os.pipe()
        try:
            pid = _fork(work, writer, {*keep, writer})
        except OSError as error:
            os.close(reader)
            raise no_process("machine", f"cannot start a process for `{name}`", error) from None
        finally:
            os.close(writer)
        job = Job(name, pid, reader, done)
        self._loop.watch(reader, READ, lambda: self._read(job))
        self._loop.after(seconds, lambda: self._expire(job, seconds))
        return pid

    def _read(self, job: Job) -> None:
        data = os.read(job.pipe, 1 << 20)
        replies = list(job.answer.feed(data))
        if replies or not data:
            why = "it was killed, often by the kernel when memory is short"
            lost = NodeError("agent", f"the agent's helper for `{job.name}` vanished", why)
            _kill(job.pid)
            self._finish(job, replies[0] if replies else failure(lost))

    def _expire(self, job: Job, seconds: float) -> None:
        if job.pipe >= 0:
            os.kill(job.pid, signal.SIGTERM)  # it ends its group; it is our child, so the pid is its own
            self._loop.after(4 * _MOMENT, lambda: _kill(job.pid) if job.pid in self._dying else None)
            what = f"`{job.name}` did not end within {seconds:g} s"
            error = NodeError("timeout", what, "a disk, a file system or a program does not respond")
            self._finish(job, failure(error))

    def _finish(self, job: Job, reply: Reply) -> None:
        self._loop.unwatch(job.pipe)
        os.close(job.pipe)
        job.pipe = -1
        self._dying.append(job.pid)
        self._loop.after(2 * _MOMENT, self._reap)
        job.done(reply)

    def _reap(self) -> None:
        self._dying = [pid for pid in self._dying if os.waitpid(pid, os.WNOHANG)[0] == 0]


def failure(error: BaseException) -> Reply:
    """Return the reply for an error; one that is neither ours nor the system's is a bug."""
    if exhausted(error):
        error = no_process("machine", "no memory or thread is left", error)
    if isinstance(error, OSError):
        full = "make room where `state` and `workdir` of this host are: df -h, orchestrate clean"
        hint = full if error.errno in lenient.FULL else ""
        kind = "state" if error.errno in lenient.FAILED else "machine"
        error = NodeError(kind, reason(error), str(error.filename or ""), hint)
    if not isinstance(error, NodeError):
        import traceback

        lines = traceback.format_exception(type(error), error, error.__traceback__)
        error = NodeError("bug", f"the agent failed: {error!r}", "".join(lines[-12:]).strip())
    return {"ok": False, "error": error.as_dict()}, b""


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass  # it has left no group behind


def _fork(work: Work, writer: int, keep: set[int]) -> int:
    agent = os.getpid()
    pid = os.fork()
    if pid:
        _own_group(pid)
        return pid
    try:
        _own_group(0)
        signal.signal(signal.SIGTERM, _end_group)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        procs.die_with_parent(signal.SIGTERM)
        if os.getppid() != agent:
            os._exit(0)
        _answer(writer, lambda: _alone(work, keep))
    finally:
        os._exit(0)


def _alone(work: Work, keep: set[int]) -> Reply:
    """Work without anything of the agent's: the connection to the controller, another task's port."""
    close_others({0, 1, 2, *keep})
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    return work()


def _own_group(pid: int) -> None:
    """Set a child's group on both sides of the fork, so that neither has to wait for the other."""
    try:
        os.setpgid(pid, 0)
    except OSError:
        pass  # the child has ended already


def _end_group(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    time.sleep(_MOMENT)
    os.killpg(0, signal.SIGKILL)


def _answer(writer: int, work: Work) -> None:
    try:
        header, payload = work()
    except BaseException as error:  # every end of a child is a reply
        header, payload = failure(error)
    try:
        answer = frames.encode(header, payload)
    except ValueError:
        why = f"{len(payload) or len(json.dumps(header)):,} bytes"
        answer = frames.encode(*failure(NodeError("agent", "has a reply that exceeds a message", why)))
    write_all(writer, answer)
