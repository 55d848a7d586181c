"""Names below a folder, opened by descriptor, one component at a time, never through a link.

Names may come from an untrusted sender, and other writers may replace a folder by a link at any moment: no
path is resolved twice, and none as a whole.
"""

from __future__ import annotations

import errno
import os
from typing import Sequence

from ..base.fault import NodeError

MOST_LEVELS = 200  # nesting depth of folders
_MOST_BYTES = 4095  # PATH_MAX
_MOST_NAME = 255
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def parts_of(name: str) -> tuple[str, ...]:
    """Return the components of a relative path; raise NodeError (kind "name") for anything else."""
    parts = tuple(name.split("/"))
    try:
        sizes = [len(os.fsencode(part)) for part in parts]
    except UnicodeEncodeError:
        raise _refuse(name, "it is not a name of a file") from None
    if name.startswith("/") or ".." in parts:
        raise _refuse(name, "it points out of its folder")
    if "\0" in name or "" in parts or "." in parts:
        raise _refuse(name, "it is not a name of a file")
    if max(sizes) > _MOST_NAME or sum(sizes) + len(sizes) > _MOST_BYTES:
        raise _refuse(name, "it is too long")
    if len(parts) > MOST_LEVELS:
        raise _refuse(name, f"it lies in more than {MOST_LEVELS} folders")
    return parts


def stays_inside(parts: Sequence[str], target: str) -> bool:
    """Return True if a link at these parts can never lead out, whatever other such links are next to it.

    `..` counts only at the beginning, where each component is a real folder; after a name, which may be a
    link, it is unknown where it leads.
    """
    steps = [step for step in target.split("/") if step not in ("", ".")]
    up = next((number for number, step in enumerate(steps) if step != ".."), len(steps))
    return bool(target) and not target.startswith("/") and up <= len(parts) - 1 and ".." not in steps[up:]


class Below:
    """A folder that is held open. `path` may be a link if the user named it; one `made` by us is none."""

    def __init__(self, path: str, *, made: bool = False) -> None:
        self.path = path
        self.fd = os.open(path, FOLDER if made else FOLDER & ~os.O_NOFOLLOW)
        if made and os.fstat(self.fd).st_uid != os.geteuid():
            os.close(self.fd)
            raise PermissionError(errno.EACCES, "somebody else has put a folder there", path)
        self._at: tuple[str, ...] = ()
        self._here = -1

    def __enter__(self) -> Below:  # noqa: PYI034 - Python 3.8
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        os.close(self.fd)

    def folder(self, parts: Sequence[str], *, make: bool = False) -> int:
        """Return the descriptor of a folder, valid until the next call; raise OSError, also for a link."""
        target = tuple(parts)
        if target[: len(self._at)] != self._at:
            self._leave()
        for depth in range(len(self._at), len(target)):
            try:
                self._enter(target[depth], make=make)
            except OSError as error:
                error.filename = os.path.join(self.path, *target[: depth + 1])
                raise
        return self._here if self._here >= 0 else self.fd

    def _enter(self, name: str, *, make: bool) -> None:
        above = self._here if self._here >= 0 else self.fd
        try:
            descriptor = os.open(name, FOLDER, dir_fd=above)
        except FileNotFoundError:
            if not make:
                raise
            try:
                os.mkdir(name, dir_fd=above)
            except FileExistsError:
                pass
            descriptor = os.open(name, FOLDER, dir_fd=above)
        if self._here >= 0:
            os.close(self._here)
        self._here, self._at = descriptor, (*self._at, name)

    def _leave(self) -> None:
        if self._here >= 0:
            os.close(self._here)
        self._here, self._at = -1, ()


def is_no_folder(error: OSError) -> bool:
    """Return True if a component was a link or a file."""
    return error.errno in (errno.ENOTDIR, errno.ELOOP)


def shortened(name: str) -> str:
    """Return an untrusted name in printable form."""
    return ascii(name) if len(name) <= 200 else f"{name[:200]!a}..."


def _refuse(name: str, why: str) -> NodeError:
    return NodeError("name", f"not a path below a folder: {shortened(name)}", why)
