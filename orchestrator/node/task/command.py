"""One user command outside any run: its output is sent as it arrives, and none of its processes remains.

A child of the agent runs it, and adopts every process that the command starts, in the background or in a
session of its own. When the command ends, is ended, or the agent is gone for any reason, the child ends the
remaining processes, and only then replies.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress
from typing import Any

from ..base import procs, trust
from ..base.descriptors import close_all
from ..base.fault import NodeError
from ..serve.agent import Agent, Request
from ..serve.frames import Json
from ..serve.loop import READ

_LONGEST = 7 * 86_400.0  # seconds
_MOMENT = 0.5  # seconds from TERM to KILL
_PATIENCE = 3.0  # seconds until a process that cannot be ended is reported
_PIECE = 1 << 16
_ENDS = (signal.SIGTERM, signal.SIGHUP)  # HUP: from the kernel, when the login of a stopped agent ends


class _EndRequested(Exception):  # noqa: N818 - an end was requested
    """TERM has arrived, from the agent or because the agent is gone; or HUP, with its login."""


def start(agent: Agent, request: Request) -> None:
    """Run `argv` without a shell, in the home folder; reply when none of its processes is left."""
    argv = [os.fsencode(str(word)) for word in request["argv"]]
    if "exec" in agent.rooms:
        raise NodeError("exec", "a command of this connection is already running")
    streams = [_Stream(agent, name) for name in ("out", "err")]
    writers = tuple(stream.writer for stream in streams)

    def done(reply: tuple[Json, bytes]) -> None:
        for stream in streams:
            stream.drain()
        del agent.rooms["exec"]
        agent.send({"id": request.id, **reply[0]})

    def work() -> tuple[Json, bytes]:
        return {"ok": True, "result": _run(argv, *writers)}, b""

    try:
        agent.rooms["exec"] = agent.jobs.run("exec", work, done, seconds=_LONGEST, keep=writers)
    finally:
        close_all(*writers)


def end(agent: Agent, _request: Request) -> Json:
    """End the command; the reply to its start reports when nothing is left."""
    pid = agent.rooms.get("exec")
    if pid is not None:
        os.kill(pid, signal.SIGTERM)  # our own child, which is not collected before its reply
    return {}


class _Stream:
    """One of the command's two outputs, on its way to the controller."""

    def __init__(self, agent: Agent, name: str) -> None:
        self._agent = agent
        self._name = name
        self._end, self.writer = os.pipe()
        os.set_blocking(self._end, False)
        self._watch()

    def drain(self) -> None:
        """Send what is still in the pipe; a process that holds its other end now cannot be ended."""
        while self._forward():
            pass
        self._close()

    def _watch(self) -> None:
        if self._end >= 0:
            self._agent.loop.watch(self._end, READ, self._on_readable)

    def _on_readable(self) -> None:
        if self._agent.outbox.room:
            self._forward()
        else:  # the command blocks at its pipe until the controller has read
            self._agent.loop.unwatch(self._end)
            self._agent.outbox.when_room(self._watch)

    def _forward(self) -> bool:
        try:
            data = os.read(self._end, _PIECE) if self._end >= 0 else b""
        except BlockingIOError:
            return False
        if data:
            self._agent.send({"exec": self._name}, data)
        else:
            self._close()
        return bool(data)

    def _close(self) -> None:
        if self._end >= 0:
            self._agent.loop.unwatch(self._end)
            os.close(self._end)
            self._end = -1


# --- in the child ---


def _run(argv: list[bytes], out: int, err: int) -> Json:
    """Return how the command ended, once none of its processes is left."""
    procs.adopt_orphans()
    trust.restore_umask()
    _handle_ends(_on_end)
    result: Json = {"status": 128 + signal.SIGTERM, "stopped": False}
    try:
        try:
            result["status"] = _status(os.waitpid(_spawn(argv, out, err), 0)[1])
        except OSError as error:
            missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
            result.update(status=127 if missing else 126, error=f"{os.fsdecode(argv[0])}: {error.strerror}")
        _handle_ends(signal.SIG_IGN)
    except _EndRequested:
        result["stopped"] = True
    result["ended"], result["left"] = _end_all()
    return result


def _on_end(*_: object) -> None:
    """Raise once: a second signal, as the agent ends, must not interrupt the end of the command."""
    _handle_ends(signal.SIG_IGN)
    raise _EndRequested


def _handle_ends(handler: Any) -> None:
    for signum in _ENDS:
        signal.signal(signum, handler)


def _spawn(argv: list[bytes], out: int, err: int) -> int:
    """Start the command; raise the OSError for a program that cannot be executed."""
    with suppress(OSError):  # the folder may be missing or not accessible: then from the current one
        os.chdir(os.path.expanduser("~"))
    streams = [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)]
    ours = (*_ENDS, signal.SIGINT, signal.SIGPIPE)
    return os.posix_spawnp(argv[0], argv, os.environ, file_actions=streams, setpgroup=0, setsigdef=ours)


def _end_all() -> tuple[int, list[str]]:
    """End every descendant; return how many there were, and the names of those that cannot be ended."""
    began = time.monotonic()
    signaled = {process.pid for process in procs.signal_all(signal.SIGTERM)}
    while procs.reap()[1]:  # orphans below us are our children
        late = time.monotonic() - began
        remaining = procs.signal_all(signal.SIGKILL) if late > _MOMENT else []
        signaled.update(process.pid for process in remaining)
        if remaining and late > _PATIENCE:  # another user's, through sudo, or stuck in the kernel
            return len(signaled), [procs.name(process.pid) for process in remaining]
        time.sleep(0.005)
    return len(signaled), []


def _status(wait_status: int) -> int:
    if os.WIFSIGNALED(wait_status):
        return 128 + os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status)
