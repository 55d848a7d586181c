"""A TCP port on all addresses of the machine."""

from __future__ import annotations

import errno
import socket


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
