"""Removes folders of any depth and never leaves them by a link: by descriptor, one level at a time.

What lies deeper is moved up to the top first, so that nothing recurses and no path grows.
"""

from __future__ import annotations

import os
import stat

from ..base.lenient import age
from .below import FOLDER


def remove(path: str) -> OSError | None:
    """Take away a folder, a file or a link, as far as it can be; the first error of what stays."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return None
        top = _open(path, None)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    errors: list[OSError] = []
    try:
        _empty(top, errors)
    finally:
        os.close(top)
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return errors[0] if errors else error
    return None


def remove_stale(folder: str, beginnings: tuple[str, ...], seconds: float, ours: str) -> None:
    """Remove what has such a name and is older than that, but for what begins with `ours`; raise OSError."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name.startswith(beginnings) and not path.startswith(ours) and age(path) > seconds:
            remove(path)


def hide_and_remove(path: str) -> None:
    """Remove it under another name: nobody sees half of it. Raise OSError where there is none."""
    above, name = os.path.split(path)
    hidden = os.path.join(above, f".gone-{name}-{os.urandom(6).hex()}")
    os.rename(path, hidden)
    remove(hidden)


def _empty(top: int, errors: list[OSError]) -> None:
    """Every folder of `top`, whose own folders are moved into `top`, until there is none that can go."""
    waiting = _unlink_files(top, errors)
    while waiting:
        name = waiting.pop()
        try:
            folder = _open(name, top)
            try:
                for below in _unlink_files(folder, errors):
                    moved = f".gone-{os.urandom(8).hex()}"
                    os.rename(below, moved, src_dir_fd=folder, dst_dir_fd=top)
                    waiting.append(moved)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)
        except OSError as error:
            errors.append(error)


def _unlink_files(folder: int, errors: list[OSError]) -> list[str]:
    """Remove what is no folder; return the folders."""
    folders = []
    with os.scandir(folder) as found:
        names = [(one.name, one.is_dir(follow_symlinks=False)) for one in found]
    for name, is_folder in names:
        if is_folder:
            folders.append(name)
            continue
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            errors.append(error)
    return folders


def _open(name: str, above: int | None) -> int:
    """A folder that can be emptied: one of our own without the permissions gets them."""
    fd = os.open(name, FOLDER, dir_fd=above)
    found = os.fstat(fd)
    if found.st_mode & 0o300 != 0o300 and found.st_uid == os.geteuid():
        os.fchmod(fd, 0o700)
    return fd
