"""Folders of a node: its store, a run's working folder, and files that are fetched.

The `path` of the store is where a folder is made: `<workdir>/trees/<digest>`, `<workdir>/data/<digest>`, or
one that tasks write (`mutable`), which is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from orchestrator.errors import expect
from orchestrator.node.disk.listing import MOST_LISTED
from orchestrator.node.stock.manifest import BLOB
from orchestrator.wire.message import (
    Count,
    Digest,
    Folder,
    Nothing,
    Port,
    Reply,
    Request,
    Words,
)

_Bits = Annotated[str, Meta(max_length=1 << 19, pattern=r"\A[0-9a-f]+\Z")]


class StoreState(StrEnum):
    """A node's knowledge of a folder."""

    WHOLE = "whole"
    ABSENT = "absent"  # or damaged: a file is gone, or is not what was verified
    UNSURE = "unsure"  # it is there, and another machine or nobody has verified it


class StoreLooked(Reply):
    path: Folder
    state: StoreState


class StoreLook(Request[StoreLooked]):
    """Ask whether a folder is there, by the sizes and times of its files."""

    path: str


class StoreBegun(Reply):
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


class StoreBegin(Request[StoreBegun]):
    """Fill a folder. The payload is its manifest.

    `key` (certificate and private key, as PEM) is for this transfer and its nodes alone.
    """

    path: str
    mutable: bool
    pieces: int
    run: str
    key: str = ""
    ports: Sequence[int] = ()  # to be served at, if one of them is free
    serve: bool = False  # it has all, and is to give it to others until it is dropped

    def check(self, reply: StoreBegun) -> None:
        _check_bits(reply.bits, self.pieces)


class StorePut(Request[Nothing]):
    """Send pieces, one after the other as payload."""

    path: str
    pieces: Sequence[int]


class StoreSource(Struct, frozen=True):
    """A peer, and what is to be taken from it."""

    host: str
    address: str
    port: int
    pieces: Sequence[int]


class StoreHeld(Reply):
    bits: _Bits
    idle: bool  # it takes nothing from a peer any more
    trouble: Words  # of the last peer; "" for none


class StoreHave(Request[StoreHeld]):
    """Ask what has come; with a `source` have pieces taken from that peer, and from no earlier one."""

    path: str
    count: int  # of pieces
    source: StoreSource | None = None

    def check(self, reply: StoreHeld) -> None:
        _check_bits(reply.bits, self.count)


class StoreSeal(Request[Nothing]):
    """Give what is complete its name."""

    path: str


class StoreDrop(Request[Nothing]):
    """End a transfer; what has come stays for the next one.

    With `remove` the folder goes; with a manifest as payload only if it is exactly that.
    """

    path: str
    remove: bool = False


class JobNeeds(Struct, frozen=True, kw_only=True):
    """A job's program (None: not asked), and paths among its arguments."""

    program: str | None
    python: str
    setup: str | None
    paths: Sequence[str] = ()


class Had(Reply):
    """Tells if the program is there, and which paths, by their places, are not."""

    program: bool
    paths: tuple[Count, ...]


class Work(Reply):
    work: Folder
    missing: tuple[Digest, ...]
    made: bool
    had: Had | None = None


class WorkMake(Request[Work]):
    """Make the run's working folder from the tree `digest`, where those in `also` are there too.

    With `needs` the host says what it has of them; where the program or a package is missing, or without
    `makes`, it looks for no tree and makes nothing.
    """

    workdir: str
    run: str
    digest: str
    also: Sequence[str]
    data: Sequence[str] = ()  # that the run reads: `clean` leaves it alone while the run lives
    needs: JobNeeds | None = None
    makes: bool = True

    def check(self, reply: Work) -> None:
        expect(set(reply.missing) <= {self.digest, *self.also}, "it misses trees that nobody asked for")
        expect((reply.had is None) == (self.needs is None), "it tells what it has, or not, as nobody asked")
        if self.needs is not None and reply.had is not None:
            places, why = len(self.needs.paths), "it names paths that it was not asked for"
            expect(all(place < places for place in reply.had.paths), why)


class Listed(Reply):
    kind: Literal["file", "folder", ""]
    root: Folder
    payload: bytes  # everything below `root`, as the host lists it: `sync.files` reads it


class FilesList(Request[Listed]):
    """Ask what is at a path (`~` is expanded there); of files only those with `holding` in their names."""

    PAYLOAD = MOST_LISTED
    path: str
    holding: str = ""


class Parts(Reply):
    """Parts of files, one after the other, but for those that are not what was listed any more."""

    gone: tuple[Count, ...]
    payload: bytes


class FilesGet(Request[Parts]):
    """Ask for parts of files below `root`: a JSON list of name, offset, length, and size and time as listed.

    With `growing` a file may be longer by now.
    """

    PAYLOAD = BLOB
    root: str
    parts: int
    growing: bool

    def check(self, reply: Parts) -> None:
        expect(all(place < self.parts for place in reply.gone), "it has lost what it was not asked for")
        expect(len(set(reply.gone)) == len(reply.gone), "it has lost something twice")
