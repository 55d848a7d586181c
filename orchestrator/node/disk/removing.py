"""Measuring folders, and removing them, never through a link."""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import NamedTuple

from ..base.lenient import changed

GONE = ".gone-"  # being removed


def remove(path: str) -> OSError | None:
    """Remove a folder, a file or a link as far as possible; return the first error of what stays."""
    import shutil  # slow to import because of its compression modules

    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return None
        _open_up(path)
        shutil.rmtree(path, ignore_errors=True)
        if os.path.lexists(path):
            shutil.rmtree(path)  # now the error is needed
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    except RecursionError:
        return OSError(errno.ELOOP, "it has more levels of folders than can be removed", path)
    return None


def _open_up(path: str) -> None:
    """Give our own folders the permissions that removing their content requires."""
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        try:
            status = os.lstat(folder)
            if status.st_mode & 0o300 != 0o300 and status.st_uid == os.geteuid():
                os.chmod(folder, 0o700)
            with os.scandir(folder) as entries:
                waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # the removal reports it


def aside(path: str) -> str:
    """Return a hidden name beside it: what is left under such a name is removed by `clean`."""
    above, name = os.path.split(path)
    return os.path.join(above, f"{GONE}{name.lstrip('.')}-{os.urandom(6).hex()}")


def hide_and_remove(path: str) -> OSError | None:
    """Remove it under another name, so that nobody sees half of it. Raise OSError if there is none."""
    hidden = aside(path)
    os.rename(path, hidden)
    return remove(hidden)


class Folder(NamedTuple):
    path: str
    used: float  # time of the last change, seconds since 1970
    size: int  # bytes on the disk

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


def measure(path: str) -> Folder:
    """Measure a folder's latest change and size; missing and unreadable parts do not count."""
    newest, total = changed(path, time.time()), 0
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            try:
                status = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            newest = max(newest, status.st_mtime)
            total += status.st_blocks * 512
    return Folder(path, newest, total)
