"""Opening files that others may have replaced: nothing here blocks, follows a link or reads without a limit.

By the time we open one of our files it can be a FIFO, a folder, a device or a link. Each of these raises an
OSError whose `strerror` is a sentence for users.
"""

import errno
import os
import stat
from pathlib import Path

from orchestrator.node.base.descriptors import replace_file
from orchestrator.node.base.trust import why_not
from orchestrator.text import size

OURS = "orchestrate"  # the name of our folders under each XDG directory


class NotOursError(OSError):
    """Another user could have written a file that decides what is executed."""


def open_plain(path: Path, flags: int, *, follow: bool = False) -> int:
    """Open a regular file without blocking; raise OSError, also for anything that is not a regular file.

    `follow` accepts a link to a regular file (for files of the user, not ours).
    """
    try:
        mode = (os.stat if follow else os.lstat)(path).st_mode  # opening a device may have an effect
    except FileNotFoundError:
        mode = stat.S_IFREG
    if stat.S_ISREG(mode):
        fd = os.open(path, flags | (0 if follow else os.O_NOFOLLOW) | os.O_NONBLOCK, 0o600)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_plain(path: Path, most: int, *, follow: bool = False, ours: bool = False) -> bytes:
    """Read a regular file of at most `most` bytes; raise OSError.

    With `ours`, raise NotOursError if another user could have written the opened file or created the link to
    it.
    """
    with os.fdopen(open_plain(path, os.O_RDONLY, follow=follow), "rb") as file:
        about = os.fstat(file.fileno())
        for status in (about, path.lstat()) if ours else ():  # another user may have made a link to our file
            if why := why_not(status):
                raise NotOursError(errno.EPERM, f"{why}, and it names commands", str(path))
        length = about.st_size
        data = file.read(min(length, most) + 1)  # a buffer of the maximum size may not fit in memory
        if len(data) > length:  # the file grew
            data += file.read(most + 1 - len(data))
        if len(data) > most:
            size_now = max(os.fstat(file.fileno()).st_size, len(data))
            raise OSError(errno.EFBIG, f"it has {size(size_now)}, and may have {size(most)}", str(path))
    return data


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file as a whole: readers see either the old or the new content. Raise OSError."""
    replace_file(str(path), data, mode)


def tail_of(path: Path, most: int, offset: int = 0) -> tuple[bytes, int]:
    """Return the last bytes of a file, none of them before `offset`, and their offset; none for no file."""
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
            begins = file.seek(max(offset, file.seek(0, os.SEEK_END) - most))
            return file.read(), begins
    except OSError:
        return b"", offset


def cache(name: str) -> Path:
    """Return our folder in the user's cache; anything in it may be removed at any time."""
    return xdg("CACHE", ".cache") / name


def xdg(kind: str, usual: str) -> Path:
    """Return our folder in $XDG_KIND_HOME, which counts only if it is absolute (XDG specification)."""
    base = Path(os.environ.get(f"XDG_{kind}_HOME", ""))
    return (base if base.is_absolute() else Path.home() / usual) / OURS


def make_folder(path: Path) -> None:
    """Create a private folder and its missing parents; raise OSError.

    Whatever the umask is, other users can write to none of them, nor to an existing folder of ours: anyone
    who can rename what is in it owns the runs.
    """
    for folder in reversed(path.parents):
        if not folder.is_dir():
            folder.mkdir(0o755, exist_ok=True)
    path.mkdir(0o700, exist_ok=True)
    for folder in (path, path.parent) if path.parent.name == OURS else (path,):
        status = folder.stat()
        open_to_others = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if status.st_uid == os.geteuid() and open_to_others:
            folder.chmod(stat.S_IMODE(status.st_mode) & ~0o022)


def at_home(path: str) -> Path:
    """Return a path with its `~` expanded, or unchanged if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
