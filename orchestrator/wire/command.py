"""`exec` on a node: one command outside any run. Its output comes as frames of their own."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from orchestrator.wire.fields import Count, Reply, Words
from orchestrator.wire.request import Request

Status = Annotated[int, Meta(ge=0, le=255)]


class CommandEnd(Reply, frozen=True):
    """How it ended; nothing of it runs any more but what `left` names."""

    status: Status
    stopped: bool
    ended: Count  # processes that it had left running
    left: tuple[Words, ...]
    error: Words = ""  # why it could not be started


class Pipe(StrEnum):
    """The stream that a command printed on."""

    OUT = "out"
    ERR = "err"


class Exec(Request[CommandEnd], frozen=True):
    OP = "exec"
    PAYLOAD = 64 << 10  # of a frame of its output

    argv: tuple[str, ...]


class Running(Reply, frozen=True):
    running: bool


class ExecEnd(Request[Running], frozen=True):
    OP = "exec_end"
