"""Folders and files of a host for the controller: what is there, and parts of their content.

A part is asked for by name, offset and length, and by the size and time that the file was listed with: a file
that is another one by then is not given. Nothing is kept between two questions.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from ..base.fault import NodeError, reason
from ..base.paths import absolute
from ..serve.agent import Agent, Request
from . import listing as lists
from .below import Below, is_no_folder, parts_of
from .listing import FILE, FOLDER

MOST_LISTED = 32 << 20  # bytes of a listing


def listing(_agent: Agent, request: Request) -> tuple[dict[str, Any], bytes]:
    """Tell what a path is, and the entries of a folder. A link that is named itself is followed."""
    path = absolute(request["path"])
    real = os.path.realpath(path)
    try:
        if os.path.isdir(real):
            kind, root, mark = FOLDER, real, request.get("holding", "")
            found = [
                one for one in lists.entries(real) if one.kind == FOLDER or mark in os.path.basename(one.path)
            ]
        elif os.path.lexists(real):
            root, name = os.path.split(real)
            found = [lists.entry_at(real, None, name)]
            kind = found[0].kind
            if kind != FILE:
                raise NodeError("files", f"cannot read {path}", "it is neither a folder nor a file")
        else:
            return {"kind": "", "root": real}, b""
    except OSError as error:
        raise NodeError("files", f"cannot read {path}", reason(error)) from None
    told = "\n".join(json.dumps(one, separators=(",", ":")) for one in found).encode()
    if len(told) > MOST_LISTED:
        why = f"the list of {len(found):,} files has {len(told):,} bytes, and may have {MOST_LISTED:,}"
        raise NodeError("files", f"has more in {path} than one list can name", why, "name a part")
    return {"kind": kind, "root": root}, told


def get(_agent: Agent, request: Request) -> tuple[dict[str, Any], bytes]:
    """Give parts of files, one after the other; `gone` are the places of those that have changed.

    With `growing` a file may have become longer.
    """
    root, data, gone = str(request["root"]), bytearray(), []
    try:
        with Below(root) as top:
            for place, (name, at, length, size, mtime_ns) in enumerate(json.loads(request.payload)):
                part = _part(top, name, at, length, (size, mtime_ns), growing=bool(request["growing"]))
                if part is None:
                    gone.append(place)
                else:
                    data += part
    except OSError as error:
        raise NodeError("files", f"cannot read {error.filename or root}", reason(error)) from None
    return {"gone": gone}, bytes(data)


def _part(
    top: Below, name: str, at: int, length: int, listed: tuple[int, int], *, growing: bool
) -> bytes | None:
    """Read a part of a file; None where it is another one than was listed."""
    *above, last = parts_of(name)
    try:
        folder = top.folder(above)
        fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or is_no_folder(error):
            return None
        raise
    try:
        now = os.fstat(fd)
        if not stat.S_ISREG(now.st_mode) or now.st_size < listed[0]:
            return None
        if not growing and (now.st_size, lists.time_of(now)) != listed:
            return None
        data = os.pread(fd, length, at)
    finally:
        os.close(fd)
    return data if len(data) == length else None
