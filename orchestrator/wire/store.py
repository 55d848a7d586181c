"""Messages about folders of a node: its store, a run's working folder, and files that are fetched.

The `path` of the store is where a folder is created: `<workdir>/trees/<digest>`, `<workdir>/data/<digest>`,
or one that tasks write (`mutable`), which is replaced as a whole.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta

from orchestrator.errors import expect
from orchestrator.node.disk.listing import MOST_LISTED
from orchestrator.node.stock.manifest import BLOB
from orchestrator.value import Value
from orchestrator.wire.message import Count, Digest, Folder, Nothing, Port, Reply, Request, Words

_Bits = Annotated[str, Meta(max_length=1 << 19, pattern=r"\A[0-9a-f]+\Z")]


class StoreState(StrEnum):
    """A node's knowledge of a folder."""

    WHOLE = "whole"
    ABSENT = "absent"  # or damaged: a file is missing, or has changed since it was verified
    UNSURE = "unsure"  # it exists, verified by another machine or by none


class StoreLooked(Reply):
    path: Folder
    state: StoreState


class StoreLook(Request[StoreLooked]):
    """Ask whether a folder exists, by the sizes and times of its files."""

    path: str


class StoreBegun(Reply):
    present: bool
    path: Folder
    incoming: Folder | None = None
    base: Folder | None = None  # a folder with earlier versions of missing files
    port: Port = 0  # where peers are served; 0: nowhere
    bits: _Bits = "0"  # the existing pieces, the first as the lowest bit

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
    ports: Sequence[int] = ()  # to serve at, if one of them is free
    serve: bool = False  # it is complete, and serves others until it is dropped

    def check(self, reply: StoreBegun) -> None:
        _check_bits(reply.bits, self.pieces)


class StorePut(Request[Nothing]):
    """Send pieces, one after the other as payload, or the bytes of one piece from `start` on."""

    path: str
    pieces: Sequence[int]
    start: int = 0


class StoreSource(Value):
    """A peer, and what to fetch from it."""

    host: str
    address: str
    port: int
    pieces: Sequence[int]


class StoreHeld(Reply):
    bits: _Bits
    idle: bool  # it no longer fetches from a peer
    trouble: Words  # of the last peer; "" for none


class StoreHave(Request[StoreHeld]):
    """Query what has arrived; with a `source`, fetch pieces from that peer, and from no earlier one."""

    path: str
    count: int  # of pieces
    source: StoreSource | None = None

    def check(self, reply: StoreHeld) -> None:
        _check_bits(reply.bits, self.count)


class StoreSeal(Request[Nothing]):
    """Rename a complete folder to its final name."""

    path: str


class StoreDrop(Request[Nothing]):
    """End a transfer; what has arrived stays for the next one.

    With `remove` the folder is removed; with a manifest as payload only if it is exactly that.
    """

    path: str
    remove: bool = False


class JobNeeds(Value, kw_only=True):
    """A job's program (None: not asked), and paths among its arguments."""

    program: str | None
    python: str
    setup: str | None
    paths: Sequence[str] = ()


class Had(Reply):
    """The existence of the program, and the positions of missing paths."""

    program: bool
    paths: tuple[Count, ...]


class Work(Reply):
    work: Folder
    missing: tuple[Digest, ...]
    made: bool
    had: Had | None = None


class WorkMake(Request[Work]):
    """Create the run's working folder from the tree `digest`, if those in `also` exist too.

    With `needs` the host reports which of them it has; if the program or a package is missing, or without
    `makes`, it looks for no tree and creates nothing.
    """

    workdir: str
    run: str
    digest: str
    also: Sequence[str]
    data: Sequence[str] = ()  # that the run reads: `clean` keeps it while the run lives
    needs: JobNeeds | None = None
    makes: bool = True
    user: str = ""  # the run that continues in the folder of `run`

    def check(self, reply: Work) -> None:
        expect(set(reply.missing) <= {self.digest, *self.also}, "it misses trees that nobody asked for")
        expect((reply.had is None) == (self.needs is None), "it tells what it has, or not, as nobody asked")
        if self.needs is not None and reply.had is not None:
            places, why = len(self.needs.paths), "it names paths that it was not asked for"
            expect(all(place < places for place in reply.had.paths), why)


class WorkLooked(Reply):
    there: bool
    alive: tuple[Words, ...]  # runs with living tasks or keepers that use it
    owned: tuple[Words, ...]  # some files or folders whose names are of single tasks


class WorkLook(Request[WorkLooked]):
    """Ask what is in the working folder of a run, which the run `user` is to continue."""

    workdir: str
    run: str
    user: str


class Listed(Reply):
    kind: Literal["file", "folder", ""]
    root: Folder
    payload: bytes  # everything below `root`, as the host lists it: `sync.files` reads it


class FilesList(Request[Listed]):
    """Ask what is at a path (`~` is expanded there); only files with `holding` in their names are listed."""

    PAYLOAD = MOST_LISTED
    path: str
    holding: str = ""


class Parts(Reply, kw_only=True):
    """Parts of files in sequence, except those that have changed since they were listed."""

    gone: tuple[Count, ...]
    grown: tuple[Count, ...] = ()  # of files that have become longer
    payload: bytes


class FilesGet(Request[Parts]):
    """Request parts of files below `root`: a JSON list of name, offset, length, and size and time as listed.

    With `growing` a file may have become longer.
    """

    PAYLOAD = BLOB
    root: str
    parts: int
    growing: bool

    def check(self, reply: Parts) -> None:
        expect(all(place < self.parts for place in reply.gone), "it has lost what it was not asked for")
        expect(len(set(reply.gone)) == len(reply.gone), "it has lost something twice")
        expect(all(place < self.parts for place in reply.grown), "more has grown than it was asked for")


class Digests(Reply):
    digests: tuple[Digest | None, ...]


class FilesDigest(Request[Digests]):
    """Request digests of the first bytes of files below `root`: a JSON list of name and size."""

    root: str
