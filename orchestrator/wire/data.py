"""Data sets on a node: looked for, received in pieces from the controller and from peers, sealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from orchestrator.wire.fields import Folder, Port, Reply, Size, Words
from orchestrator.wire.request import Nothing, Request, expect

_Bits = Annotated[str, Meta(max_length=1 << 19, pattern=r"\A[0-9a-f]+\Z")]
_Plan = Annotated[int, Meta(ge=-1, le=2**31)]


class DataState(StrEnum):
    """What a node knows of data by its digest."""

    WHOLE = "whole"
    DAMAGED = "damaged"  # a file is gone, or is not what was verified
    ABSENT = "absent"
    UNSURE = "unsure"  # it is there, and another machine or nobody has verified it


class DataLooked(Reply, frozen=True):
    path: Folder
    state: DataState
    wrong: tuple[Words, ...]  # the first files that are damaged
    free: Size  # bytes on that disk


class DataLook(Request[DataLooked], frozen=True, kw_only=True):
    """Whether data is there, by sizes and times; with `thorough` by all its bytes."""

    OP = "data_look"
    workdir: str
    digest: str
    thorough: bool


class DataBegun(Reply, frozen=True):
    present: bool
    path: Folder
    port: Port = 0  # where peers are served; 0: nowhere
    bits: _Bits = "0"  # the pieces that are there, the first as the lowest bit


def _check_bits(bits: str, pieces: int) -> None:
    expect(int(bits, 16) >> pieces == 0, "it has pieces that do not exist")


class DataBegin(Request[DataBegun], frozen=True, kw_only=True):
    """Make the folder that is to be filled. The payload is the digest of each piece, one after the other.

    `key` (certificate and private key, as PEM) is for this transfer and its nodes alone.
    """

    OP = "data_begin"
    workdir: str
    digest: str
    run: str
    manifest: Sequence[Mapping[str, object]]
    size: int  # bytes of a piece; the last one may be shorter
    pieces: int
    key: str
    ports: Sequence[int]  # to be served at, if one of them is free
    serve: bool  # it has all, and is to give it to others until it is dropped

    def check(self, reply: DataBegun) -> None:
        _check_bits(reply.bits, self.pieces)


class DataPiece(Request[Nothing], frozen=True, kw_only=True):
    """A piece, as payload."""

    OP = "data_piece"
    digest: str
    piece: int


class DataSource(Struct, frozen=True):
    """A peer, and what is to be taken from it."""

    host: str
    address: str
    port: int
    pieces: Sequence[int]


class DataPeers(Request[Nothing], frozen=True, kw_only=True):
    """Take pieces from peers; what an earlier plan said is over."""

    OP = "data_peers"
    digest: str
    plan: int
    sources: Sequence[DataSource]


class DataTrouble(Reply, frozen=True):
    """A peer that did not give what it was asked for."""

    host: Words
    why: Words


class DataHeld(Reply, frozen=True):
    bits: _Bits
    idle: _Plan  # the plan of `DataPeers` that is at its end
    trouble: tuple[DataTrouble, ...]
    waits: bool  # for another transfer of the same data


class DataHave(Request[DataHeld], frozen=True, kw_only=True):
    OP = "data_have"
    digest: str
    pieces: int

    def check(self, reply: DataHeld) -> None:
        _check_bits(reply.bits, self.pieces)


class DataSealed(Reply, frozen=True):
    present: bool
    path: Folder


class DataSeal(Request[DataSealed], frozen=True, kw_only=True):
    """Give what is complete its name."""

    OP = "data_seal"
    digest: str


class DataDrop(Request[Nothing], frozen=True, kw_only=True):
    """End a transfer; what has come stays for the next one."""

    OP = "data_drop"
    digest: str
