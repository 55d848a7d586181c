"""The seam to whatever carries bytes to a host: one connection with byte channels on it."""

from collections.abc import Sequence
from typing import Protocol

from orchestrator.errors import HostError
from orchestrator.model import Host


class Channel(Protocol):
    """A command running on the host: its stdin, stdout and the end of its stderr.

    One thread may receive while another sends. After `close` a blocked `recv` returns b"".
    """

    def send(self, data: bytes) -> None:
        """Send all of it; raise HostError (kind "lost") if the command or the link has ended."""

    def send_eof(self) -> None:
        """Close the command's stdin."""

    def recv(self, limit: int) -> bytes:
        """Return at least one byte, or b"" at the end of stdout; a lost link is an end and does not raise."""

    def stderr_tail(self) -> bytes:
        """Return the last 4 KiB received on stderr so far."""

    def wait(self, timeout: float) -> int | None:
        """Return the exit status after stdout has ended; -1 if there is none, None after the timeout (s)."""

    def close(self) -> None:
        """Close the channel, and thereby the command's pipes. Idempotent."""


class Link(Protocol):
    """One authenticated connection to one host."""

    def open(self, argv: Sequence[str]) -> Channel:
        """Run argv (quoted once, here) in the login environment; raise HostError."""

    @property
    def remark(self) -> str:
        """Return why this is not the usual transport to the host, for users; "" for the usual one."""

    def explain(self, status: int | None, stderr: bytes) -> HostError | None:
        """Return the transport's error for an ended channel; None if the remote command ended it."""

    def leave(self) -> None:
        """End what was started there only to be reached, such as a container; raise HostError."""

    def close(self) -> None:
        """Close the connection with all its channels. Idempotent; wakes blocked readers."""


class Connector(Protocol):
    """Opens links; `connect` may be called from many threads at once."""

    def connect(self, host: Host, timeout: float) -> Link:
        """Connect and authenticate within `timeout` seconds; raise HostError, most specific kind first."""

    def close(self) -> None:
        """Release what links share (bastion connections). Idempotent."""
