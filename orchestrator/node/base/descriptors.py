"""Files and sockets of a process: closing them, writing all of it, and listening on a port."""

from __future__ import annotations

import errno
import os
import socket
from typing import Collection

_OPEN = "/proc/self/fd"
_OPEN_ELSEWHERE = "/dev/fd"  # on macOS, which a controller may run


def close_others(kept: Collection[int]) -> None:
    """Close every descriptor except these, so that the other ends notice it."""
    for fd in [int(name) for name in os.listdir(_OPEN if os.path.isdir(_OPEN) else _OPEN_ELSEWHERE)]:
        if fd not in kept:
            try:
                os.close(fd)
            except OSError:
                pass  # the one used for listing them


def close_all(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all data, although a single write may take less; raise OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def replace_file(path: str, data: bytes, mode: int = 0o600) -> None:
    """Replace a file in one step for its readers. Raise OSError.

    The temporary name is hidden, and cannot be guessed: others may have put links into the folder.
    """
    above, name = os.path.split(path)
    beside = os.path.join(above, f".{name.lstrip('.')}.{os.urandom(8).hex()}")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        os.replace(beside, path)
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise


def listen(port: int, backlog: int) -> socket.socket:
    """Listen as TensorFlow does: on every address, in both families if available; raise OSError."""
    try:
        both = socket.AF_INET6
        return socket.create_server(("::", port), family=both, backlog=backlog, dualstack_ipv6=True)
    except ValueError:
        pass  # without IPv6; or Python could not tell, for lack of a descriptor
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise
    return socket.create_server(("", port), backlog=backlog)
