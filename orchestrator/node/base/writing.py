"""Writing all of it, and writing it as a whole."""

from __future__ import annotations

import os


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
