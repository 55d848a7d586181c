"""The first word of an agent, and the signs of life of both ends."""

from __future__ import annotations

from orchestrator.wire.fields import Folder, Moment, Reply, Words
from orchestrator.wire.request import Failure, Nothing, ProtocolError, Request

PROTOCOL = 1


class Hello(Reply, frozen=True):
    protocol: int
    python: Words
    user: Words
    boot_id: Words
    netns: Words
    time_ns: Moment
    state: Folder | None
    state_error: Failure | None
    state_place: Words = ""  # one folder under two names has the same

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol != PROTOCOL:
            raise ProtocolError(f"it speaks version {self.protocol} of our protocol, not {PROTOCOL}")


class Time(Reply, frozen=True):
    time_ns: Moment


class Ping(Request[Time], frozen=True):
    OP = "ping"


class Beats(Request[Nothing], frozen=True):
    """Ask for a sign of life every `every` seconds."""

    OP = "beats"
    every: float
