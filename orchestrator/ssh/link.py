"""One SSH connection and the byte channels on it, over paramiko's raw channels."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import paramiko

from orchestrator.errors import HostError
from orchestrator.ssh import quoting, sockets
from orchestrator.ssh.failures import NoCommand
from orchestrator.ssh.keyfile import reason

_TAIL = 4096
_OPEN_TIMEOUT = 30.0


@dataclass(eq=False)
class SshLink:
    """One authenticated connection. Thread-safe."""

    _transport: paramiko.Transport
    _explain: Callable[[BaseException], HostError]
    _hang_up: Callable[[], None]
    _environment: Sequence[tuple[str, str]]

    def open(self, argv: Sequence[str]) -> SshChannel:
        """Run argv in the login environment."""
        try:
            channel = self._transport.open_session(timeout=_OPEN_TIMEOUT)
        except Exception as error:
            raise self._broken(error) from error
        try:
            for name, value in self._environment:
                channel.set_environment_variable(name, value)
            channel.exec_command(quoting.join(argv))
        except Exception as error:
            channel.close()
            if self._transport.is_active():
                raise self._explain(NoCommand("the channel was closed")) from error
            raise self._lost() from error
        return SshChannel(channel, self._lost)

    def stalled(self) -> str:
        """What the kernel says of packets of ours that nobody acknowledges; "" while all is well."""
        return sockets.stalled(self._transport.sock)

    def close(self) -> None:
        """Cut the connection and with it every channel."""
        self._hang_up()

    def _broken(self, error: BaseException) -> HostError:
        return self._explain(error) if self._transport.is_active() else self._lost()

    def _lost(self) -> HostError:
        cause = self._transport.saved_exception or EOFError("the connection is closed")
        return self._explain(ConnectionResetError(reason(cause)))


class SshChannel:
    """A command at the far end. One thread may receive while another sends."""

    def __init__(self, channel: paramiko.Channel, lost: Callable[[], HostError]) -> None:
        self._channel = channel
        self._lost = lost
        self._tail = bytearray()
        self._tail_lock = threading.Lock()
        self._bell = _Bell()
        channel.in_buffer.set_event(_Side(self._bell, "out"))
        channel.in_stderr_buffer.set_event(_Side(self._bell, "err"))

    def send(self, data: bytes) -> None:
        """Send all of it; raise HostError (kind "lost") when the far end or the link is gone."""
        try:
            self._channel.sendall(data)
        except (OSError, paramiko.SSHException, EOFError) as error:
            raise self._lost() from error

    def send_eof(self) -> None:
        """Close the command's stdin."""
        with contextlib.suppress(OSError, paramiko.SSHException, EOFError):
            self._channel.shutdown_write()

    def recv(self, limit: int) -> bytes:
        """At least one byte, b"" at the end of stdout.

        stderr is drained on the way: left alone it would fill its window and stop the command.
        """
        while True:
            self._bell.wait()
            self._drain()
            if self._bell.rang("out"):
                return self._channel.recv(limit)

    def stderr_tail(self) -> bytes:
        """The last 4 KiB of what arrived on stderr so far."""
        self._drain()
        with self._tail_lock:
            return bytes(self._tail)

    def wait(self, timeout: float) -> int | None:
        """The exit status once stdout has ended, -1 when there is none, None after the timeout."""
        if not self._channel.status_event.wait(timeout):
            return None
        return self._channel.exit_status

    def close(self) -> None:
        """Close the channel; the command sees its pipes close."""
        with contextlib.suppress(OSError, paramiko.SSHException, EOFError):
            self._channel.close()

    def _drain(self) -> None:
        with self._tail_lock:
            while self._channel.recv_stderr_ready():
                self._tail += self._channel.recv_stderr(65536)
                del self._tail[:-_TAIL]


class _Bell:
    """Rings while one of a channel's two buffers holds data or is closed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._ringing: set[str] = set()

    def wait(self) -> None:
        with self._condition:
            while not self._ringing:
                self._condition.wait()

    def rang(self, name: str) -> bool:
        return name in self._ringing

    def ring(self, name: str) -> None:
        with self._condition:
            self._ringing.add(name)
            self._condition.notify_all()

    def hush(self, name: str) -> None:
        with self._condition:
            self._ringing.discard(name)


class _Side(threading.Event):
    """What paramiko sets and clears as its buffer fills and empties."""

    def __init__(self, bell: _Bell, name: str) -> None:
        super().__init__()
        self._bell = bell
        self._name = name

    def set(self) -> None:
        self._bell.ring(self._name)

    def clear(self) -> None:
        self._bell.hush(self._name)


def cut(sock: socket.socket | paramiko.Channel | None) -> None:
    """Shut the socket down first: closing one that another thread reads does not wake that thread."""
    if sock is None:
        return
    with contextlib.suppress(OSError, EOFError):
        sock.shutdown(socket.SHUT_RDWR)
