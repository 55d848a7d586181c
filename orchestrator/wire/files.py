"""Folders and files of a node: listed, out as a tar stream, and back in."""

from __future__ import annotations

from enum import StrEnum

from orchestrator.node.disk.tarstream import CHUNK, FILE, FOLDER, LINK
from orchestrator.node.serve.frames import MAX_PAYLOAD
from orchestrator.wire.fields import Count, Folder, Reply, Words
from orchestrator.wire.request import LARGE, Nothing, Request, expect


class PathKind(StrEnum):
    """What a path is."""

    FILE = FILE
    FOLDER = FOLDER
    LINK = LINK
    NOTHING = ""


class Near(Reply, frozen=True):
    """The nearest folder where nothing is, and some of what it holds."""

    folder: Words
    names: tuple[Words, ...]
    more: Count


class Listed(Reply, frozen=True):
    kind: PathKind
    root: Folder
    payload: bytes  # everything below `root`, as the host lists it: `sync.admit` reads it
    near: Near | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(self.kind is not PathKind.LINK, "a link was not followed")
        expect((self.kind is PathKind.NOTHING) == (self.near is not None), "something and nothing is there")


class FilesList(Request[Listed], frozen=True, kw_only=True):
    """What is at a path (`~` is expanded there)."""

    OP = "files_list"
    PAYLOAD = MAX_PAYLOAD
    path: str


class Opened(Reply, frozen=True):
    stream: Count


class FilesOpen(Request[Opened], frozen=True, kw_only=True):
    """Begin to pack entries (a JSON list of name and size, as payload) below `root`.

    `growing`: of a file that is longer by now as much is packed as was listed.
    """

    OP = "files_open"
    root: str
    growing: bool


class Piece(Reply, frozen=True):
    """A piece of a tar stream; with the end comes what was gone by then."""

    end: bool
    payload: bytes
    gone: tuple[str, ...] = ()


class FilesMore(Request[Piece], frozen=True, kw_only=True):
    OP = "files_more"
    HEAD = LARGE
    PAYLOAD = CHUNK
    stream: int


class FilesClose(Request[Nothing], frozen=True, kw_only=True):
    OP = "files_close"
    stream: int


class Begun(Reply, frozen=True):
    target: Folder
    incoming: Folder


class FilesBegin(Request[Begun], frozen=True, kw_only=True):
    """Make the hidden folder that is to become `target`."""

    OP = "files_begin"
    target: str


class FilesPut(Request[Nothing], frozen=True, kw_only=True):
    """A piece of a tar stream, as payload."""

    OP = "files_put"
    incoming: str
    more: bool


class FilesSwap(Request[Nothing], frozen=True, kw_only=True):
    """Put the incoming folder (or the `single` file in it) in its place, with what is kept (payload)."""

    OP = "files_swap"
    target: str
    incoming: str
    single: str | None


class FilesRemove(Request[Nothing], frozen=True, kw_only=True):
    OP = "files_remove"
    target: str
