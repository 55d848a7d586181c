"""Channels that say nothing after their close.

A message after it makes OpenSSH end the whole connection ("referred to nonexistent channel"), and
with it every other channel: a bastion's with all hosts behind it. paramiko's channels can do that.
They decide under a lock what to send, but send it without; another thread's close may overtake it.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import paramiko
from paramiko.common import cMSG_CHANNEL_CLOSE

_GONE = (OSError, EOFError, paramiko.SSHException)


class Transport(paramiko.Transport):
    """Its channels send through a gate each."""

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
        """Send in turn; to close a channel of a connection that is gone is no error."""
        closes = message.asbytes().startswith(cMSG_CHANNEL_CLOSE)
        with self._lock:
            if self._shut:
                return
            self._shut = closes
            with contextlib.suppress(*_GONE if closes else ()):
                self._transport._send_user_message(message)  # noqa: SLF001 - the way of all channels
