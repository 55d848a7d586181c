"""One SSH connection and the byte channels on it, over paramiko's raw channels.

Our channels say nothing after their close. A message after it makes OpenSSH end the whole connection
("referred to nonexistent channel"), and with it every other channel: a bastion's with all hosts behind it.
paramiko's channels can do that: they decide under a lock what to send, but send it without, and another
thread's close may overtake it.

paramiko also believes what a server says of the size of a packet, up to 4 GB and before any key was looked
at, and keeps whatever it sends beyond a channel's window: as OpenSSH's client does, we end such a connection.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import paramiko
from paramiko.common import (
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    cMSG_CHANNEL_CLOSE,
    cMSG_CHANNEL_WINDOW_ADJUST,
)

from orchestrator.errors import HostError
from orchestrator.quoting import command_line
from orchestrator.ssh.resolve import reason

_TAIL = 4096
_OPEN_TIMEOUT = 30.0
MOST_PACKET = 256 * 1024  # bytes, as OpenSSH has it (PACKET_MAX_SIZE)
_HANDLERS: dict[int, Any] = vars(paramiko.Transport)["_channel_handler_table"]
_GONE = (OSError, EOFError, paramiko.SSHException)


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
            channel.close()
            raise self._broken(error) from error
        return SshChannel(channel, self._lost)

    remark = ""

    def explain(self, status: int | None, words: bytes) -> HostError | None:
        """Return nothing: a channel exists only on a connection that was made."""
        del status, words
        return None

    def close(self) -> None:
        self._hang_up()

    def _broken(self, error: BaseException) -> HostError:
        return self._explain(error) if self._transport.is_active() else self._lost()

    def _lost(self) -> HostError:
        cause = self._transport.saved_exception or EOFError("the connection is closed")
        return self._explain(ConnectionResetError(reason(cause)))


class SshChannel:
    """A `Channel`, over one of paramiko's."""

    def __init__(self, channel: paramiko.Channel, lost: Callable[[], HostError]) -> None:
        self._channel = channel
        self._lost = lost
        self._tail = b""
        self._drainer = threading.Thread(target=self._drain, name="stderr", daemon=True)
        self._drainer.start()

    def send(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except _GONE as error:
            raise self._lost() from error

    def send_eof(self) -> None:
        with contextlib.suppress(*_GONE):
            self._channel.shutdown_write()

    def recv(self, limit: int) -> bytes:
        return self._channel.recv(limit)

    def stderr_tail(self) -> bytes:
        return self._tail

    def wait(self, timeout: float) -> int | None:
        if not self._channel.status_event.wait(timeout):
            return None
        self._drainer.join(timeout)
        return self._channel.exit_status

    def close(self) -> None:
        with contextlib.suppress(*_GONE):
            self._channel.close()

    def _drain(self) -> None:
        """Take what comes on stderr: left alone it would fill its window and stop the command."""
        while data := self._channel.recv_stderr(65536):
            self._tail = (self._tail + data)[-_TAIL:]


def _with_room(handler: Callable[[Any, paramiko.Message], None]) -> Callable[[Any, paramiko.Message], None]:
    """End the connection by SSHException for data that a channel has no room for."""

    def take(channel: Any, message: paramiko.Message) -> None:
        if len(channel.in_buffer) + len(channel.in_stderr_buffer) > 2 * channel.in_window_size:
            raise paramiko.SSHException("more data than a channel's window allows was sent")
        handler(channel, message)

    return take


class Transport(paramiko.Transport):
    """A transport with bounds on what a server sends, whose channels send through a gate each."""

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

    def open_channel(self, *args: Any, **options: Any) -> paramiko.Channel:
        channel = super().open_channel(*args, **options)
        channel.transport = Gate(self)  # type: ignore[assignment]  # as far as a channel can see
        return channel


class Gate:
    """The transport as one channel sees it: shut by the message that closes the channel."""

    def __init__(self, transport: paramiko.Transport) -> None:
        self._transport: Any = transport
        self._lock = threading.Lock()
        self._shut = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _send_user_message(self, message: paramiko.Message) -> None:
        """Send in turn; on a connection that is gone it is no error to close a channel, nor to make room.

        Room is made by whoever has just read: what was read counts, and the end comes with the next read.
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
