"""The store of a node: folders by their manifests, looked for, filled from here and from peers, and dropped.

`path` is where the folder is made: `<workdir>/trees/<digest>`, `<workdir>/data/<digest>`, or one that tasks
write (`mutable`), which is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from orchestrator.wire.fields import Folder, Port, Reply, Size, Words
from orchestrator.wire.request import Nothing, Request, expect

_Bits = Annotated[str, Meta(max_length=1 << 19, pattern=r"\A[0-9a-f]+\Z")]


class StoreState(StrEnum):
    """A node's knowledge of a folder."""

    WHOLE = "whole"
    DAMAGED = "damaged"  # a file is gone, or is not what was verified
    ABSENT = "absent"
    UNSURE = "unsure"  # it is there, and another machine or nobody has verified it


class StoreLooked(Reply, frozen=True):
    path: Folder
    state: StoreState
    wrong: tuple[Words, ...]  # the first files that are damaged
    free: Size  # bytes on that disk


class StoreLook(Request[StoreLooked], frozen=True, kw_only=True):
    """Ask whether a folder is there, by sizes and times; with `thorough` by all its bytes."""

    OP = "store_look"
    path: str
    thorough: bool


class StoreBegun(Reply, frozen=True):
    present: bool
    path: Folder
    incoming: Folder | None = None
    base: Folder | None = None  # a folder that has earlier versions of files that are missing
    port: Port = 0  # where peers are served; 0: nowhere
    bits: _Bits = "0"  # the pieces that are there, the first as the lowest bit

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(self.present == (self.incoming is None), "a folder is there and is not")


def _check_bits(bits: str, pieces: int) -> None:
    expect(int(bits, 16) >> pieces == 0, "it has pieces that do not exist")


class StoreBegin(Request[StoreBegun], frozen=True, kw_only=True):
    """Fill a folder. The payload is its manifest.

    `key` (certificate and private key, as PEM) is for this transfer and its nodes alone.
    """

    OP = "store_begin"
    path: str
    mutable: bool
    pieces: int
    run: str
    key: str = ""
    ports: Sequence[int] = ()  # to be served at, if one of them is free
    serve: bool = False  # it has all, and is to give it to others until it is dropped

    def check(self, reply: StoreBegun) -> None:
        _check_bits(reply.bits, self.pieces)


class StorePut(Request[Nothing], frozen=True, kw_only=True):
    """Send pieces, one after the other as payload."""

    OP = "store_put"
    path: str
    pieces: Sequence[int]


class StoreSource(Struct, frozen=True):
    """A peer, and what is to be taken from it."""

    host: str
    address: str
    port: int
    pieces: Sequence[int]


class StoreHeld(Reply, frozen=True):
    bits: _Bits
    idle: bool  # it takes nothing from a peer any more
    trouble: Words  # of the last peer; "" for none


class StoreHave(Request[StoreHeld], frozen=True, kw_only=True):
    """Ask what has come; with a `source` have pieces taken from that peer, and from no earlier one."""

    OP = "store_have"
    path: str
    count: int  # of pieces
    source: StoreSource | None = None

    def check(self, reply: StoreHeld) -> None:
        _check_bits(reply.bits, self.count)


class StoreSeal(Request[Nothing], frozen=True, kw_only=True):
    """Give what is complete its name."""

    OP = "store_seal"
    path: str


class StoreDrop(Request[Nothing], frozen=True, kw_only=True):
    """End a transfer; what has come stays for the next one.

    With `remove` the folder goes; with a manifest as payload only if it is exactly that.
    """

    OP = "store_drop"
    path: str
    remove: bool = False
