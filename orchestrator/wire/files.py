"""Folders and files of a node: listed, and given in parts."""

from __future__ import annotations

from typing import Literal

from orchestrator.node.disk.files import MOST_LISTED
from orchestrator.node.stock.manifest import BLOB
from orchestrator.wire.fields import Count, Folder, Reply
from orchestrator.wire.request import Request, expect


class Listed(Reply, frozen=True):
    kind: Literal["file", "folder", ""]
    root: Folder
    payload: bytes  # everything below `root`, as the host lists it: `sync.files` reads it


class FilesList(Request[Listed], frozen=True, kw_only=True):
    """Ask what is at a path (`~` is expanded there); of files only those with `holding` in their names."""

    OP = "files_list"
    PAYLOAD = MOST_LISTED
    path: str
    holding: str = ""


class Parts(Reply, frozen=True):
    """Parts of files, one after the other, but for those that are not what was listed any more."""

    gone: tuple[Count, ...]
    payload: bytes


class FilesGet(Request[Parts], frozen=True, kw_only=True):
    """Ask for parts of files below `root`: a JSON list of name, offset, length, and size and time as listed.

    With `growing` a file may be longer by now.
    """

    OP = "files_get"
    PAYLOAD = BLOB
    root: str
    parts: int
    growing: bool

    def check(self, reply: Parts) -> None:
        expect(all(place < self.parts for place in reply.gone), "it has lost what it was not asked for")
        expect(len(set(reply.gone)) == len(reply.gone), "it has lost something twice")
