"""The seam between us and whatever carries bytes to a host: one connection, byte channels on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from orchestrator.errors import HostError
from orchestrator.model import Host


class Channel(Protocol):
    """A command running at the far end: its stdin, stdout and the tail of its stderr.

    One thread may receive while another sends. After `close` a blocked `recv` returns b"".
    """

    def send(self, data: bytes) -> None:
        """Send all of it; raise HostError (kind "lost") when the far end or the link is gone."""

    def send_eof(self) -> None:
        """Close the command's stdin."""

    def recv(self, limit: int) -> bytes:
        """At least one byte, b"" at the end of stdout; never raises for a lost link, it ends."""

    def stderr_tail(self) -> bytes:
        """The last 4 KiB of what arrived on stderr so far."""

    def wait(self, timeout: float) -> int | None:
        """The exit status once stdout has ended, -1 when there is none, None after the timeout (s)."""

    def close(self) -> None:
        """Close the channel; the command sees its pipes close. Idempotent."""


class Link(Protocol):
    """One authenticated connection to one host."""

    def open(self, argv: Sequence[str]) -> Channel:
        """Run argv (quoted once, here) in the login environment; raise HostError."""

    @property
    def remark(self) -> str:
        """Why this is not the usual way to the host, for a person; "" for the usual one."""

    def explain(self, status: int | None, words: bytes) -> HostError | None:
        """Return the error of the way there, told by how a channel ended; None where the far end ended it."""

    def close(self) -> None:
        """Cut the connection and with it every channel. Idempotent; wakes blocked readers."""


class Connector(Protocol):
    """Opens links; `connect` may be called from many threads at once."""

    def connect(self, host: Host, timeout: float) -> Link:
        """Connect and authenticate within `timeout` seconds; raise HostError, most specific kind first."""

    def close(self) -> None:
        """Let go of what links share (bastion connections). Idempotent."""
