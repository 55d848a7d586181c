"""One SSH connection and the byte channels on it, over paramiko's raw channels.

Our channels send nothing after their close. A message after it makes OpenSSH end the whole connection
("referred to nonexistent channel"), and with it every other channel: a bastion's with all hosts behind it.
paramiko's channels can do that: they decide under a lock what to send, but send it outside, and another
thread's close may come first.

paramiko also trusts a server's packet size, up to 4 GB and before any key was checked, and keeps whatever it
sends beyond a channel's window: like OpenSSH's client, we end such a connection.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import paramiko
from paramiko.auth_handler import AuthHandler
from paramiko.common import (
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    cMSG_CHANNEL_CLOSE,
    cMSG_CHANNEL_WINDOW_ADJUST,
)

from orchestrator.errors import HostError
from orchestrator.node.base.fault import reason
from orchestrator.quoting import command_line

_TAIL = 4096
_OPEN_TIMEOUT = 30.0
MOST_PACKET = 256 * 1024  # bytes, as in OpenSSH (PACKET_MAX_SIZE)
_HANDLERS: dict[int, Any] = vars(paramiko.Transport)["_channel_handler_table"]
_NO_COMMAND = paramiko.ChannelException(4, "it could not start a command")  # a shortage of resources
_GONE = (OSError, EOFError, paramiko.SSHException)


class _Arrival(threading.Event):
    """Set when a channel has new data on stdout or stderr, or ends.

    Each of its two buffers clears it when that one is empty, which only the reader of both may do.
    """

    def clear(self) -> None:
        pass

    forget = threading.Event.clear


@dataclass(eq=False)
class SshLink:
    """A `Link`. Thread-safe."""

    _transport: paramiko.Transport
    _explain: Callable[[BaseException], HostError]
    _hang_up: Callable[[], None]

    def open(self, argv: Sequence[str]) -> SshChannel:
        try:
            channel = self._transport.open_session(timeout=_OPEN_TIMEOUT)
        except Exception as error:
            raise self._broken(error) from error
        try:
            channel.exec_command(command_line(argv))
        except Exception as error:
            with contextlib.suppress(*_GONE):  # a close is a message, too
                channel.close()
            is_refused = type(error) is paramiko.SSHException
            raise self._broken(_NO_COMMAND if is_refused else error) from error
        return SshChannel(channel, self._lost)

    remark = ""

    def explain(self, status: int | None, stderr: bytes) -> HostError | None:
        """Return nothing, unless the connection itself is gone."""
        del status, stderr
        return None if self._transport.is_active() else self._lost()

    def leave(self) -> None:
        pass

    def close(self) -> None:
        self._hang_up()

    def _broken(self, error: BaseException) -> HostError:
        return self._explain(error) if self._transport.is_active() else self._lost()

    def _lost(self) -> HostError:
        cause = self._transport.saved_exception
        why = reason(cause) if cause and str(cause) else "it gave no reason"  # at a mere end of the stream
        return self._explain(ConnectionResetError(why))


class SshChannel:
    """A `Channel`, over one of paramiko's."""

    def __init__(self, channel: paramiko.Channel, lost: Callable[[], HostError]) -> None:
        self._channel = channel
        self._lost = lost
        self._tail = b""
        self._arrived = _Arrival()
        channel.in_buffer.set_event(self._arrived)
        channel.in_stderr_buffer.set_event(self._arrived)

    def send(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except _GONE as error:
            raise self._lost() from error

    def send_eof(self) -> None:
        with contextlib.suppress(*_GONE):
            self._channel.shutdown_write()

    def recv(self, limit: int) -> bytes:
        channel = self._channel
        while True:
            self._arrived.forget()
            self._drain()  # unread data would fill its window and stop the command
            if channel.recv_ready() or channel.eof_received or channel.closed:
                return channel.recv(limit)
            self._arrived.wait()

    def stderr_tail(self) -> bytes:
        self._drain()
        return self._tail

    def wait(self, timeout: float) -> int | None:
        if not self._channel.status_event.wait(timeout):
            return None
        self._channel.settimeout(timeout)
        with contextlib.suppress(TimeoutError):
            while self._read_stderr():
                pass
        return self._channel.exit_status

    def close(self) -> None:
        with contextlib.suppress(*_GONE):
            self._channel.close()

    def _drain(self) -> None:
        while self._channel.recv_stderr_ready() and self._read_stderr():
            pass

    def _read_stderr(self) -> bytes:
        data = self._channel.recv_stderr(65536)
        self._tail = (self._tail + data)[-_TAIL:]
        return data


def _with_room(handler: Callable[[Any, paramiko.Message], None]) -> Callable[[Any, paramiko.Message], None]:
    """End the connection by SSHException for data beyond a channel's window."""

    def take(channel: Any, message: paramiko.Message) -> None:
        if len(channel.in_buffer) + len(channel.in_stderr_buffer) > 2 * channel.in_window_size:
            raise paramiko.SSHException("more data than a channel's window allows was sent")
        handler(channel, message)

    return take


class Transport(paramiko.Transport):
    """A transport with limits on what a server sends, whose channels each send through a gate."""

    _channel_handler_table = _HANDLERS | {
        kind: _with_room(_HANDLERS[kind]) for kind in (MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA)
    }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        packetizer: Any = self.packetizer
        read_all = packetizer.read_all

        def read(size: int, *args: Any, **options: Any) -> Any:
            if size > MOST_PACKET:
                raise paramiko.SSHException(f"a packet of {size:,} bytes was announced")
            return read_all(size, *args, **options)

        packetizer.read_all = read
        packetizer.start_handshake = lambda _seconds: None  # a timer, which is a thread: we have a deadline

    def auth_publickey(self, username: str, key: paramiko.PKey, event: threading.Event | None = None) -> Any:
        if event is not None or not self.is_active():
            return super().auth_publickey(username, key, event)
        done, self.auth_handler = threading.Event(), _Login(self)
        self.auth_handler.auth_publickey(username, key, done)
        return self.auth_handler.wait_for_response(done)

    def open_channel(self, *args: Any, **options: Any) -> paramiko.Channel:
        channel = super().open_channel(*args, **options)
        channel.transport = Gate(self)  # type: ignore[assignment]  # as far as a channel can see
        return channel


class _Login(AuthHandler):
    """Sends a login without waiting for the reply to its service request, which saves a round trip.

    RFC 4253 (section 10) allows that. An RSA key waits for the server's list of signature algorithms.
    """

    _sends = False  # whether it does; set before the request, whose reply another thread may read at once

    def _request_auth(self) -> None:
        self._sends = "rsa" not in self._get_key_type_and_bits(self.private_key)[0]  # type: ignore[attr-defined]
        super()._request_auth()  # type: ignore[misc]
        if self._sends:
            message = paramiko.Message()
            message.add_string("ssh-userauth")
            super()._parse_service_accept(paramiko.Message(message.asbytes()))  # type: ignore[misc]

    def _parse_service_accept(self, message: paramiko.Message) -> None:
        if not self._sends:
            super()._parse_service_accept(message)  # type: ignore[misc]


class Gate:
    """The transport as seen by one channel: shut by the message that closes the channel."""

    def __init__(self, transport: paramiko.Transport) -> None:
        self._transport: Any = transport
        self._lock = threading.Lock()
        self._shut = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _send_user_message(self, message: paramiko.Message) -> None:
        """Send in turn; on a lost connection, closing a channel or opening its window is not an error.

        The window is opened after reading: that data counts, and the next read reports the end.
        """
        data = message.asbytes()
        closes = data.startswith(cMSG_CHANNEL_CLOSE)
        no_error = closes or data.startswith(cMSG_CHANNEL_WINDOW_ADJUST)
        with self._lock:
            if self._shut:
                return
            self._shut = closes
            with contextlib.suppress(*_GONE if no_error else ()):
                self._transport._send_user_message(message)  # noqa: SLF001 - the way of all channels
