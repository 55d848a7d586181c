"""The transport of `ssh = "local"`: processes of this machine instead of an SSH connection."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.node.base.fault import reason

_TAIL = 4096


class LocalConnector:
    def connect(self, host: Host, timeout: float) -> LocalLink:
        """Nothing to connect to: always succeeds."""
        del timeout
        return LocalLink(host.name)

    def close(self) -> None:
        """There is nothing that links share."""


class LocalLink:
    def __init__(self, host: str) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._channels: list[LocalChannel] = []

    def open(self, argv: Sequence[str]) -> LocalChannel:
        """Start argv from the home folder, as a login does; `~/` at the start of the program is expanded."""
        program, *rest = argv
        if program.startswith("~/"):
            program = str(Path(program).expanduser())
        home = Path.home()
        try:
            process = subprocess.Popen(
                [program, *rest],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=home if home.is_dir() else "/",
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(
                self._host,
                f"cannot run {argv[0]}",
                kind="command",
                why=reason(error),
                hint=f"`which {shlex.quote(argv[0])}`",
            ) from error
        channel = LocalChannel(self._host, process)
        with self._lock:
            self._channels = [known for known in self._channels if not known.over] + [channel]
        return channel

    def stalled(self) -> str:
        """Pipes lose nothing."""
        return ""

    def close(self) -> None:
        """Close every channel, as a cut connection would."""
        with self._lock:
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()


class LocalChannel:
    """A child process and its pipes."""

    def __init__(self, host: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._host = host
        self._process = process
        self._in, self._out, self._err = process.stdin, process.stdout, process.stderr
        self._wake_read, self._wake_write = os.pipe()
        self._lock = threading.Lock()
        self._closed = False
        self._tail = b""
        self._drainer = threading.Thread(target=self._drain, name=f"stderr of {host}", daemon=True)
        self._drainer.start()

    @property
    def over(self) -> bool:
        return self._closed and self._process.poll() is not None

    def send(self, data: bytes) -> None:
        """Send all of it; raise HostError (kind "lost") when the command is gone."""
        view = memoryview(data)
        try:
            while view:
                view = view[self._in.write(view) or 0 :]
        except (OSError, ValueError) as error:
            raise HostError(
                self._host,
                "closed the connection",
                kind="lost",
                why="the command on this machine has ended",
                hint="see its last words in the debug log",
            ) from error

    def send_eof(self) -> None:
        """Close the command's stdin."""
        with contextlib.suppress(OSError):
            self._in.close()

    def recv(self, limit: int) -> bytes:
        """At least one byte, b"" at the end of stdout or after `close`."""
        poll = select.poll()
        try:
            poll.register(self._out, select.POLLIN)
            poll.register(self._wake_read, select.POLLIN)
            ready = dict(poll.poll())
            if self._closed or not ready.get(self._out.fileno()):
                return b""
            return os.read(self._out.fileno(), limit)
        except (OSError, ValueError):
            return b""

    def stderr_tail(self) -> bytes:
        """The last 4 KiB of what arrived on stderr so far."""
        return self._tail

    def wait(self, timeout: float) -> int | None:
        """The exit status, 128 + signal as a shell says it, None after the timeout."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._drainer.join(timeout)
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        """Close the command's pipes and collect it; one that does not end at that gets TERM."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        os.write(self._wake_write, b"x")
        self.send_eof()
        try:
            threading.Thread(target=self._collect, name=f"collect for {self._host}", daemon=True).start()
        except RuntimeError:  # this machine has none left
            self._collect()

    def _collect(self) -> None:
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()
        self._out.close()
        self._drainer.join(timeout=2)
        self._err.close()
        os.close(self._wake_write)
        os.close(self._wake_read)

    def _drain(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := self._err.read(65536):
                self._tail = (self._tail + data)[-_TAIL:]
