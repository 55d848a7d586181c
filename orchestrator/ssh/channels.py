"""Channels that say nothing after their close, and take no more than they have room for.

A message after it makes OpenSSH end the whole connection ("referred to nonexistent channel"), and
with it every other channel: a bastion's with all hosts behind it. paramiko's channels can do that.
They decide under a lock what to send, but send it without; another thread's close may overtake it.

paramiko also believes what a server says of the size of a packet, up to 4 GB, and keeps whatever it sends
beyond a channel's window: as OpenSSH's client does, we end such a connection.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import paramiko
from paramiko.common import (
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    cMSG_CHANNEL_CLOSE,
    cMSG_CHANNEL_WINDOW_ADJUST,
)

MOST_PACKET = 256 * 1024  # bytes, as OpenSSH has it (PACKET_MAX_SIZE)
_HANDLERS: dict[int, Any] = vars(paramiko.Transport)["_channel_handler_table"]
_DATA = (MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA)
_GONE = (OSError, EOFError, paramiko.SSHException)


def _bounded(read_all: Callable[..., bytes]) -> Callable[..., bytes]:
    """The same for packets that a server may send."""

    def read(size: int, *args: Any, **options: Any) -> bytes:
        if size > MOST_PACKET:
            raise paramiko.SSHException(f"a packet of {size:,} bytes was announced")
        return read_all(size, *args, **options)

    return read


def _with_room(handler: Callable[[Any, paramiko.Message], None]) -> Callable[[Any, paramiko.Message], None]:
    """The same, with SSHException, which ends the connection, for data that a channel has no room for."""

    def take(channel: Any, message: paramiko.Message) -> None:
        if len(channel.in_buffer) + len(channel.in_stderr_buffer) > 2 * channel.in_window_size:
            raise paramiko.SSHException("more data than a channel's window allows was sent")
        handler(channel, message)

    return take


class Transport(paramiko.Transport):
    """Its channels send through a gate each; it remembers what the far end offered, and its last words."""

    offer: dict[str, list[str]] | None = None
    farewell = ""  # why the far end ended the connection, in its words

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        packetizer: Any = self.packetizer
        packetizer.read_all = _bounded(packetizer.read_all)

    _channel_handler_table = {**_HANDLERS, **{kind: _with_room(_HANDLERS[kind]) for kind in _DATA}}  # noqa: RUF012

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.farewell = message.get_text()

    def _really_parse_kex_init(self, *args: Any, **options: Any) -> Any:
        parsed = super()._really_parse_kex_init(*args, **options)  # type: ignore[misc]
        self.offer = {name: list(value) for name, value in parsed.items() if isinstance(value, list)}
        return parsed

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
