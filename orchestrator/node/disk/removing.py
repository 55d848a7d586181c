"""Removes folders of any depth and never leaves them by a link: by descriptor, one level at a time.

What lies deeper is moved up to the top first, so that nothing recurses and no path grows.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path: str) -> Optional[OSError]:
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
    errors: List[OSError] = []
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


def _empty(top: int, errors: List[OSError]) -> None:
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


def _unlink_files(folder: int, errors: List[OSError]) -> List[str]:
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


def _open(name: str, above: Optional[int]) -> int:
    """A folder that can be emptied: one of our own without the permissions gets them."""
    fd = os.open(name, _FOLDER, dir_fd=above)
    found = os.fstat(fd)
    if found.st_mode & 0o300 != 0o300 and found.st_uid == os.geteuid():
        os.fchmod(fd, 0o700)
    return fd
