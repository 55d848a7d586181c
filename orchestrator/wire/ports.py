"""Ports of a machine: who has them, who reaches them, and the leases of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from orchestrator.wire.fields import Count, Port, Reply, Seconds, Words
from orchestrator.wire.request import Nothing, Request, expect


class Lessee(Reply, frozen=True):
    """Whose lease it is; None: its holder has not written it yet, or it is another user's."""

    run: Words | None
    task: Words | None
    owner: Words | None
    since: Seconds | None = None

    @property
    def words(self) -> str:
        """`worker/0 of run r1 (ada@home)`."""
        if self.run is None:
            return f"a run of user {self.owner}" if self.owner else "another run"
        return f"{self.task} of run {self.run} ({self.owner})"


class Busy(Reply, frozen=True):
    """A port that somebody has: a lease, or the words of the process table."""

    port: Port
    holder: Lessee | Words | None
    passes: bool = False  # a preflight looks at it, and will be over in a moment

    @property
    def words(self) -> str:
        """Name its holder."""
        if isinstance(self.holder, Lessee):
            return self.holder.words
        return self.holder or "a process that this login may not see"


class Listening(Reply, frozen=True):
    listening: tuple[Port, ...]
    busy: tuple[Busy, ...]
    extra: Port | None = None


class Listen(Request[Listening], frozen=True, kw_only=True):
    """Listen on the task ports that are free; with `extra` also on one that the kernel chooses.

    Whoever connects gets `nonce`, the host's name and `large` bytes.
    """

    OP = "listen"
    run: str
    ports: Sequence[int]
    nonce: str
    host: str
    extra: bool = False
    large: int = 0

    def check(self, reply: Listening) -> None:
        named = [*reply.listening, *(busy.port for busy in reply.busy)]
        expect(sorted(named) == sorted(set(self.ports)), "it names other ports than it was asked for")


class Unlisten(Request[Nothing], frozen=True):
    OP = "unlisten"


class ProbeTarget(Struct, frozen=True):
    host: str
    address: str
    port: int


class Probed(Reply, frozen=True):
    """Result of one connection."""

    host: Words
    tcp: bool
    tcp_ms: Seconds | None
    why: Words
    icmp: bool | None  # of what did not answer: whether it answers a ping; None: that could not be measured
    resolved: Words = ""  # the numeric address that was tried last
    large: bool | None = None  # whether large packets come from there; None: not tried
    large_ms: Seconds | None = None
    packet: Count | None = None  # bytes of the largest packet on this connection


class Probes(Reply, frozen=True):
    results: tuple[Probed, ...]


class Probe(Request[Probes], frozen=True, kw_only=True):
    OP = "probe"
    HEAD = 16 << 20
    nonce: str
    timeout: float
    targets: Sequence[ProbeTarget]
    large: int = 0  # bytes that come behind the answer

    def check(self, reply: Probes) -> None:
        hosts = [target.host for target in self.targets]
        expect(
            [probed.host for probed in reply.results] == hosts,
            "it tells of other hosts than it was asked for",
        )


class Conflict(Lessee, frozen=True, kw_only=True):
    port: Port


class Leased(Reply, frozen=True):
    conflicts: tuple[Conflict, ...]


class Lease(Request[Leased], frozen=True, kw_only=True):
    """Take these ports (as text, each with its task) for a run: all, or none."""

    OP = "lease"
    run: str
    owner: str
    ports: Mapping[str, str]

    def check(self, reply: Leased) -> None:
        named = {str(conflict.port) for conflict in reply.conflicts}
        expect(named <= set(self.ports), "it names other ports than it was asked for")
