"""The files that a process has open: closing them, and writing all of it."""

from __future__ import annotations

import os
from typing import Collection

_OPEN = "/proc/self/fd"
_OPEN_ELSEWHERE = "/dev/fd"  # on macOS, which a controller may run


def close_others(kept: Collection[int]) -> None:
    """Close every descriptor but these, so that whoever is at the far end sees it go."""
    for fd in [int(name) for name in os.listdir(_OPEN if os.path.isdir(_OPEN) else _OPEN_ELSEWHERE)]:
        if fd not in kept:
            try:
                os.close(fd)
            except OSError:
                pass  # the one that listed them


def write_all(fd: int, data: bytes) -> None:
    """A write may take less than it is given; raise OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def replace_file(path: str, data: bytes) -> None:
    """Give a file other content, for its owner alone: who reads it sees all of one. Raise OSError."""
    beside = f"{path}.{os.urandom(4).hex()}"
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
    os.replace(beside, path)
