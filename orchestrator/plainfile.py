"""Opening files that others may have replaced: nothing here blocks, follows a link or reads without a bound.

A file of ours can be a FIFO, a folder, a device or a link by the time we open it. Every such thing is an
OSError whose `strerror` is a sentence for a person.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

from orchestrator.text import size

OURS = "orchestrate"  # what our folders are called, in each of XDG's


class NotOursError(OSError):
    """Somebody else could have written a file that decides what is run."""


def open_plain(path: Path, flags: int, *, follow: bool = False) -> int:
    """Open a regular file without waiting for anybody; raise OSError, for anything else too.

    `follow`: a link to a regular file will do (a file of the user's, not of ours).
    """
    try:
        mode = (os.stat if follow else os.lstat)(path).st_mode  # a device may act when it is opened
    except FileNotFoundError:
        mode = stat.S_IFREG
    if stat.S_ISREG(mode):
        fd = os.open(path, flags | (0 if follow else os.O_NOFOLLOW) | os.O_NONBLOCK, 0o600)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_plain(path: Path, most: int, *, follow: bool = False, ours: bool = False) -> bytes:
    """Read a regular file of at most `most` bytes; raise OSError.

    `ours`: raise NotOursError where another user could have written what was opened, or made the link to it.
    """
    with os.fdopen(open_plain(path, os.O_RDONLY, follow=follow), "rb") as file:
        if ours:
            _check_ours(path, os.fstat(file.fileno()))
        length = os.fstat(file.fileno()).st_size
        data = file.read(min(length, most) + 1)  # a buffer for the most may be more than there is memory
        if len(data) > length:  # it has grown
            data += file.read(most + 1 - len(data))
        if len(data) > most:
            found = max(os.fstat(file.fileno()).st_size, len(data))
            raise OSError(errno.EFBIG, f"it has {size(found)}, and may have {size(most)}", str(path))
    return data


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file as a whole: a reader sees the old or the new. Raise OSError.

    Until then it has a name that nobody can have guessed: others may have put links into the folder.
    """
    beside = path.with_name(f".{path.name.removeprefix('.')}.{secrets.token_hex(8)}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def end_of(path: Path, window: int) -> tuple[bytes, int]:
    """The last bytes of a file, and where they begin; nothing where there is none."""
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
            begins = file.seek(max(0, file.seek(0, os.SEEK_END) - window))
            return file.read(), begins
    except OSError:
        return b"", 0


def tail_of(path: Path, offset: int, most: int = 1 << 30) -> tuple[bytes, int]:
    """The bytes of a file from an offset on, of more than `most` the last ones, and where they begin."""
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
            begins = file.seek(max(offset, file.seek(0, os.SEEK_END) - most))
            return file.read(), begins
    except OSError:
        return b"", offset


def cache(name: str) -> Path:
    """A folder of ours in the user's cache: whatever is in it may be removed at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / OURS / name


def make_folder(path: Path) -> None:
    """Make a private folder, and what is missing above it; raise OSError.

    Whatever the umask is, others write in none of them, nor in one of ours that is there already: who can
    rename what is in it owns the runs.
    """
    for one in reversed(path.parents):
        if not one.is_dir():
            one.mkdir(0o755, exist_ok=True)
    path.mkdir(0o700, exist_ok=True)
    for one in (path, path.parent) if path.parent.name == OURS else (path,):
        found = one.stat()
        open_to_others = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
        if found.st_uid == os.geteuid() and open_to_others:
            one.chmod(stat.S_IMODE(found.st_mode) & ~0o022)


def _check_ours(path: Path, about: os.stat_result) -> None:
    owners = {about.st_uid, path.lstat().st_uid}
    if not owners <= {os.geteuid(), 0}:
        raise NotOursError(errno.EPERM, "it belongs to another user, and it says what is run", str(path))
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotOursError(
            errno.EPERM, "others than its owner may write it, and it says what is run", str(path)
        )


def at_home(path: str) -> Path:
    """A path with its `~` expanded; as it stands where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
