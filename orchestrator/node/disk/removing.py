"""Measures folders, and removes them, never through a link."""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import NamedTuple

from ..base.lenient import changed


def remove(path: str) -> OSError | None:
    """Take away a folder, a file or a link, as far as it can be; the first error of what stays."""
    import shutil  # its compressions take a while to load

    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return None
        _open_up(path)
        shutil.rmtree(path, ignore_errors=True)
        if os.path.lexists(path):
            shutil.rmtree(path)  # now the error is wanted
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    except RecursionError:
        return OSError(errno.ELOOP, "it has more levels of folders than can be removed", path)
    return None


def _open_up(path: str) -> None:
    """Give folders of our own the permissions without which nothing in them can be removed."""
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        try:
            found = os.lstat(folder)
            if found.st_mode & 0o300 != 0o300 and found.st_uid == os.geteuid():
                os.chmod(folder, 0o700)
            with os.scandir(folder) as entries:
                waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # what removes it tells


def hide_and_remove(path: str) -> None:
    """Remove it under another name: nobody sees half of it. Raise OSError where there is none."""
    above, name = os.path.split(path)
    hidden = os.path.join(above, f".gone-{name}-{os.urandom(6).hex()}")
    os.rename(path, hidden)
    remove(hidden)


class Folder(NamedTuple):
    path: str
    used: float  # when it was last, seconds since 1970
    size: int  # bytes on the disk

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


def measure(path: str) -> Folder:
    """Measure a folder's newest change and size; what is gone or not ours to read does not count."""
    newest, total = changed(path, time.time()), 0
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            try:
                found = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            newest = max(newest, found.st_mtime)
            total += found.st_blocks * 512
    return Folder(path, newest, total)
