"""Opening files that others may have replaced: nothing here blocks, follows a link or reads without a bound.

A file of ours can be a FIFO, a folder, a device or a link by the time we open it. Every such thing is an
OSError whose `strerror` is a sentence for a person.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from orchestrator.text import size

OURS = "orchestrate"  # what our folders are called, in each of XDG's
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotPlainError(OSError):
    """Something else stands where a file should be."""


class NotOursError(OSError):
    """Somebody else could have written a file that decides what is run."""


def open_plain(path: Path, flags: int, *, follow: bool = False) -> int:
    """Open a regular file without waiting for anybody; raise NotPlainError for anything else, or OSError.

    `follow`: a link to a regular file will do (a file of the user's, not of ours).
    """
    _check(path, follow=follow)  # a device may act when it is opened
    blocking = 0 if follow else os.O_NOFOLLOW
    fd = os.open(path, flags | blocking | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise _not_plain(path, mode)
    return fd


def read_plain(path: Path, most: int, *, follow: bool = False, ours: bool = False) -> bytes:
    """Read a regular file of at most `most` bytes; raise OSError.

    `ours`: raise NotOursError where another user could have written what was opened, or made the link to it.
    """
    with os.fdopen(open_plain(path, os.O_RDONLY, follow=follow), "rb") as file:
        if ours:
            _check_ours(path, os.fstat(file.fileno()))
        data = file.read(most + 1)
        if len(data) > most:
            found = max(os.fstat(file.fileno()).st_size, len(data))
            raise OSError(errno.EFBIG, f"it has {size(found)}, and may have {size(most)}", str(path))
    return data


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file as a whole: a reader sees the old or the new. Raise OSError.

    Until then it has a name that nobody can have guessed: others may have put links into the folder.
    """
    beside = path.with_name(f".{path.name.removeprefix('.')}.{secrets.token_hex(8)}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def stands_at(path: Path, fd: int) -> bool:
    """Return True if an open file is still at its path: it may have been removed, or replaced."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


def cache(name: str) -> Path:
    """A folder of ours in the user's cache: whatever is in it may be removed at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / OURS / name


def make_folder(path: Path, tries: int = 10) -> None:
    """Make a private folder, and what is missing above it; raise OSError.

    Whatever the umask is, others write in none of them, nor in one of ours that is there already: who can
    rename what is in it owns the runs.
    """
    try:
        for one in reversed(path.parents):
            if not one.is_dir():
                one.mkdir(0o755, exist_ok=True)
        path.mkdir(0o700, exist_ok=True)
        for one in (path, path.parent) if path.parent.name == OURS else (path,):
            found = one.stat()
            open_to_others = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
            if found.st_uid == os.geteuid() and open_to_others:
                one.chmod(stat.S_IMODE(found.st_mode) & ~0o022)
    except FileNotFoundError:  # another command has removed an empty one of them
        if not tries:
            raise
        make_folder(path, tries - 1)


def move_aside(path: Path) -> None:
    """Give what stands in the way, if anything does, another name."""
    with contextlib.suppress(FileNotFoundError):
        path.rename(path.with_name(f"{path.name}.damaged-{secrets.token_hex(4)}"))


def make_way(path: Path, *, folder: bool = False) -> None:
    """Move aside what is no regular file (no folder) under this name; raise OSError when that fails."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    # A link to a folder will do: logs may have been moved to a larger disk.
    if not (path.is_dir() if folder else stat.S_ISREG(mode)):
        move_aside(path)


def _check(path: Path, *, follow: bool) -> None:
    try:
        mode = (os.stat if follow else os.lstat)(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise _not_plain(path, mode)


def _check_ours(path: Path, about: os.stat_result) -> None:
    owners = {about.st_uid, path.lstat().st_uid}
    if not owners <= {os.geteuid(), 0}:
        raise NotOursError(errno.EPERM, "it belongs to another user, and it says what is run", str(path))
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotOursError(
            errno.EPERM, "others than its owner may write it, and it says what is run", str(path)
        )


def _not_plain(path: Path, mode: int) -> NotPlainError:
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    return NotPlainError(errno.EINVAL, f"it is {kind}, not a file", str(path))


def at_home(path: str) -> Path:
    """A path with its `~` expanded; as it stands where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
