"""Files and sockets of a process: closing them, writing all of it, and listening on a port."""

from __future__ import annotations

import errno
import os
import socket
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
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    os.replace(beside, path)


def listen(port: int, backlog: int) -> socket.socket:
    """Listen as TensorFlow does: every address, both families where the machine has both; raise OSError."""
    if socket.has_dualstack_ipv6():
        both = socket.AF_INET6
        try:
            return socket.create_server(("::", port), family=both, backlog=backlog, dualstack_ipv6=True)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise
    return socket.create_server(("", port), backlog=backlog)
