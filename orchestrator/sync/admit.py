"""A host's listing turned into entries that can only lie below a folder of ours.

A host may be anybody's: each name, kind, size and link of its listing is looked at here, once, and nothing
else of it is used. What is only unwelcome is left out and named; what cannot be true is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from orchestrator.errors import HostError
from orchestrator.node.base.fault import NodeError
from orchestrator.node.disk import listing
from orchestrator.node.disk.below import parts_of, shortened, stays_inside
from orchestrator.node.disk.listing import FILE, FOLDER, LINK, ODD, Entry

_MOST_ROW = 64 << 10  # bytes; names and targets have 4,095 each, and escapes
_MOST_SIZE = 1 << 53
_MOST_TIME = 1 << 63
_FIELDS = (str, str, int, int, int, str)
# git executes what lies in such a folder, wherever it is found; some file systems know no upper case.
_EXECUTED = ".git"
_KINDS = {FILE, FOLDER, LINK, ODD}
LEFT_OUT = "links that lead out of the folder, folders named .git, FIFOs, sockets, devices"


class Links(Enum):
    """Which symbolic links are taken."""

    INSIDE = auto()  # those that can never lead out of the folder
    ANY = auto()  # as they are: of a tree whose digest is compared before anybody uses it


@dataclass(frozen=True)
class Admitted:
    entries: tuple[Entry, ...]
    left_out: tuple[str, ...]  # names of what LEFT_OUT says


def admit(host: str, payload: bytes, kind: str, links: Links = Links.INSIDE) -> Admitted:
    """The entries of a listing; raise HostError for one that no honest host sends."""
    entries: dict[str, Entry] = {}
    left_out: dict[str, None] = {}
    for row in _rows(host, payload):
        one = _entry(host, row)
        parts = _parts(host, one.path)
        above = "/".join(parts[:-1])
        if one.path in entries or one.path in left_out:
            raise unasked(host, one.path, "it is listed twice")
        if _is_below(above, left_out):
            continue
        if above and (above not in entries or entries[above].kind != FOLDER):
            raise unasked(host, one.path, "it is listed below something that is not a folder")
        if one.kind == ODD or (links is Links.INSIDE and is_unwelcome(one)):
            left_out[one.path] = None
        else:
            entries[one.path] = one
    found = tuple(entries.values())
    if kind == FILE and not (len(found) == 1 and found[0].kind == FILE and "/" not in found[0].path):
        raise unasked(host, next(iter(entries), ""), "a single file was said to be there")
    return Admitted(found, tuple(left_out))


def is_unwelcome(one: Entry) -> bool:
    """Return True if it is what LEFT_OUT says; a link that *may* lead out of its folder is one that does."""
    parts = parts_of(one.path)
    leads_out = one.kind == LINK and not stays_inside(parts, one.target)
    return one.kind == ODD or leads_out or parts[-1].casefold() == _EXECUTED


def unasked(host: str, name: str, why: str) -> HostError:
    """The one error for names and files that an honest host does not send."""
    return HostError(
        host,
        "sent files that were not asked for",
        kind="unasked",
        why=f"{shortened(name)}: {why}",
        hint="take nothing more from that machine before you know who controls it",
    )


def garbled(host: str, why: str) -> HostError:
    return HostError(
        host,
        "does not speak our protocol",
        kind="protocol",
        why=why,
        hint="look at what answers there: the agent is sent anew with each connection",
    )


def _rows(host: str, payload: bytes) -> Iterator[Any]:
    """Read line by line, so that what a host makes up takes no more memory than what it may list."""
    start = number = 0
    while start < len(payload):
        end = payload.find(b"\n", start) % (len(payload) + 1)
        number += 1
        if end - start > _MOST_ROW or number > listing.MOST_ENTRIES:
            raise garbled(
                host, f"a list of more than {listing.MOST_ENTRIES:,} files, or of names without end"
            )
        try:
            yield json.loads(payload[start:end])
        except (ValueError, RecursionError):
            raise garbled(host, "its list of files is no JSON") from None
        start = end + 1


def _entry(host: str, row: object) -> Entry:
    if not isinstance(row, list) or [type(field) for field in row] != list(_FIELDS):
        raise garbled(host, "its list of files has a row that is none")
    one = Entry(*row)
    size_is_right = 0 <= one.size < _MOST_SIZE and (one.kind == FILE or one.size == 0)
    time_is_right = -_MOST_TIME <= one.mtime_ns < _MOST_TIME
    if one.kind not in _KINDS or not size_is_right or not time_is_right or one.mode < 0:
        raise unasked(host, one.path, "no file has such a kind, size, time or mode")
    if one.kind == LINK and not _is_target(one.target):
        raise unasked(host, one.path, "no link has such a target")
    target = one.target if one.kind == LINK else ""
    return one._replace(mode=one.mode & 0o777, target=target)


def _is_target(text: str) -> bool:
    try:
        return 0 < len(text.encode("utf-8", "surrogateescape")) <= 4095 and "\0" not in text
    except UnicodeEncodeError:
        return False


def _parts(host: str, name: str) -> tuple[str, ...]:
    try:
        return parts_of(name)
    except NodeError as error:
        raise unasked(host, name, error.why) from None


def _is_below(folder: str, left_out: dict[str, None]) -> bool:
    while folder:
        if folder in left_out:
            return True
        folder = folder.rpartition("/")[0]
    return False
