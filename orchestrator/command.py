"""Transports that run a child process, whose stdin and stdout are a socket that serves as the channel.

`ssh = "local"` runs our command itself. Every other transport runs a client (`ssh`, `srun`, or the user's
own command) whose last argument is a command line for the remote shell.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from orchestrator import processes
from orchestrator.errors import HostError
from orchestrator.node.base.fault import reason
from orchestrator.quoting import command_line

Explain: TypeAlias = Callable[[int | None, bytes], HostError | None]

_TAIL = 4096
_ENDING = 2.0  # seconds for a client to end after its pipes are closed, and again after TERM


@dataclass(eq=False, repr=False)  # the environment may contain secrets
class PipeLink:
    """Processes on this machine, or on the machine that a client connects to."""

    _host: str
    _client: Sequence[str] | None = None
    _explain: Explain = lambda _status, _words: None
    remark: str = ""
    environ: Mapping[str, str] | None = None  # None: our own environment
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _channels: list[PipeChannel] = field(default_factory=list)
    _closed: bool = False

    def open(self, argv: Sequence[str]) -> PipeChannel:
        """Run argv from the home folder, as a login does; a leading `~/` of the program is expanded."""
        if self._client is None:
            program, *rest = argv
            argv_here = [str(Path(program).expanduser()) if program.startswith("~/") else program, *rest]
            cwd = str(Path.home()) if Path.home().is_dir() else "/"
        else:
            argv_here, cwd = [*self._client, command_line(argv)], None
        with self._lock:
            if self._closed:
                raise _lost(self._host, "the connection is closed")
            self._channels = [channel for channel in self._channels if not channel.over]
            ours, theirs = socket.socketpair()
            try:
                process = subprocess.Popen(
                    argv_here,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.PIPE,
                    cwd=cwd,
                    env=self.environ,
                    bufsize=0,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                what, hint = f"cannot run {argv_here[0]}", f"`which {shlex.quote(argv_here[0])}`"
                raise HostError(self._host, what, kind="command", why=reason(error), hint=hint) from error
            finally:
                theirs.close()
            self._channels.append(channel := PipeChannel(self._host, process, ours))
        return channel

    def explain(self, status: int | None, stderr: bytes) -> HostError | None:
        """Return the client's own error, derived from its status and the last output on stderr."""
        return self._explain(status, stderr)

    def leave(self) -> None:
        pass

    def close(self) -> None:
        """Close every channel, as a lost connection would."""
        with self._lock:
            self._closed = True
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()


def _lost(host: str, why: str) -> HostError:
    hint = "see its last output in the debug log"
    return HostError(host, "closed the connection", kind="lost", why=why, hint=hint)


class PipeChannel:
    """A child process and our end of its stdin and stdout socket."""

    def __init__(self, host: str, process: subprocess.Popen[bytes], end: socket.socket) -> None:
        assert process.stderr is not None
        self._host = host
        self._process = process
        processes.alive.add(process)
        self._end, self._err = end, process.stderr
        self._lock = threading.Lock()
        self._closed = False
        self._tail = b""
        self._drainer = threading.Thread(target=self._drain, name=f"stderr of {host}", daemon=True)
        self._drainer.start()

    @property
    def over(self) -> bool:
        return self._closed and self._process.poll() is not None

    def send(self, data: bytes) -> None:
        """Send all of it; raise HostError (kind "lost") if the command has ended or the channel is closed."""
        try:
            self._end.sendall(data)
        except OSError as error:
            why = "the connection is closed" if self._closed else "the command on this machine has ended"
            raise _lost(self._host, why) from error

    def send_eof(self) -> None:
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_WR)

    def recv(self, limit: int) -> bytes:
        """Return at least one byte, or b"" at the end of stdout or after `close`."""
        try:
            return b"" if self._closed else self._end.recv(limit)
        except OSError:
            return b""

    def stderr_tail(self) -> bytes:
        return self._tail

    def wait(self, timeout: float) -> int | None:
        """Return the exit status (128 + signal, as a shell reports it), or None after the timeout."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._drainer.join(timeout)
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        """Close the command's socket and collect the process; kill its process group if it does not end."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        try:
            threading.Thread(target=self._collect, name=f"collect for {self._host}", daemon=True).start()
        except RuntimeError:  # no thread left on this machine
            self._collect()

    def _collect(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                self._process.wait(_ENDING)
                break
            except subprocess.TimeoutExpired:
                processes.kill(self._process, number)
        self._process.wait()
        processes.alive.discard(self._process)
        self._end.close()
        self._drainer.join(_ENDING)
        self._err.close()

    def _drain(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := self._err.read(65536):
                self._tail = (self._tail + data)[-_TAIL:]
