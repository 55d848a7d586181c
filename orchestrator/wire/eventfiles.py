"""Pieces of the files that tasks write for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from orchestrator.node.base.fault import NodeError
from orchestrator.node.disk.below import parts_of
from orchestrator.node.disk.listing import CHUNK
from orchestrator.node.look.eventfiles import MARK, MOST
from orchestrator.wire.fields import Count, Offset, Reply
from orchestrator.wire.request import LARGE, Request, expect


class Grown(Struct, frozen=True):
    """A piece of one file."""

    path: Annotated[str, Meta(max_length=4095)]
    offset: Offset
    length: Count

    def __post_init__(self) -> None:
        try:
            parts = parts_of(self.path)
        except NodeError as error:
            raise ValueError(f"{error.what}: {error.why}") from None
        expect(MARK in parts[-1], "a file that TensorBoard does not read")


class EventFiles(Reply, frozen=True):
    """Pieces, whose bytes follow each other in the payload; `behind` bytes are yet to come."""

    files: Annotated[tuple[Grown, ...], Meta(max_length=MOST)]
    behind: Count
    more: bool  # there are more files than are looked at
    payload: bytes

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(
            sum(one.length for one in self.files) == len(self.payload), "pieces that do not fit their bytes"
        )
        expect(len({one.path for one in self.files}) == len(self.files), "a file twice")


class EventFilesOf(Request[EventFiles], frozen=True, kw_only=True):
    """Asks for what is new below `root` to a controller that has `known` (path -> size)."""

    OP = "event_files"
    HEAD = LARGE
    PAYLOAD = CHUNK
    root: str
    known: Mapping[str, int]

    def check(self, reply: EventFiles, /) -> None:
        for one in reply.files:
            expect(one.offset in (0, self.known.get(one.path, 0)), "a piece that was not asked for")
