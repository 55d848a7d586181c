"""Copying a file within a machine: as a clone where the file system can, else the bytes without the holes.

A clone shares its blocks until one side is written, so a task that writes never alters the tree.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from ..base.writing import write_all

_CLONE = 0x40049409  # FICLONE of linux/fs.h
_PIECE = 1 << 20
_SMALL = 1 << 16  # bytes up to which a clone is no gain
_NO_HOLES = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY)


def copy(source: str, target: str) -> None:
    """Make `target`, which must not exist, with content and mode of `source`; a link stays a link."""
    status = os.lstat(source)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
        return
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        writer = os.open(target, flags, stat.S_IMODE(status.st_mode))
        try:
            os.fchmod(writer, stat.S_IMODE(status.st_mode))
            if status.st_size <= _SMALL:
                _copy_range(reader, writer, 0, status.st_size)
            elif not _clone(reader, writer):
                _copy_data(reader, writer, status.st_size)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _clone(reader: int, writer: int) -> bool:
    try:
        fcntl.ioctl(writer, _CLONE, reader)
    except OSError:
        return False
    return True


def _copy_data(reader: int, writer: int, size: int) -> None:
    place = 0
    while place < size:
        start, end = _next_data(reader, place, size)
        _copy_range(reader, writer, start, end)
        place = end
    os.ftruncate(writer, size)


def _next_data(reader: int, place: int, size: int) -> tuple[int, int]:
    """(start, end) of what is stored next; at the end of the file, nothing."""
    try:
        start = os.lseek(reader, place, os.SEEK_DATA)
        return start, os.lseek(reader, start, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size, size
        if error.errno in _NO_HOLES:
            return place, size
        raise


def _copy_range(reader: int, writer: int, start: int, end: int) -> None:
    if start:
        os.lseek(writer, start, os.SEEK_SET)
    while start < end:
        data = os.pread(reader, min(_PIECE, end - start), start)
        if not data:
            return
        start += len(data)
        write_all(writer, data)
