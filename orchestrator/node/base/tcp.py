"""A TCP port on all addresses of the machine."""

from __future__ import annotations

import errno
import socket


def listen(port: int, backlog: int) -> socket.socket:
    """As TensorFlow binds: every address, both families where the machine has both; raise OSError."""
    families = [socket.AF_INET6, socket.AF_INET] if socket.has_ipv6 else [socket.AF_INET]
    for family in families:
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # a kernel without this family
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(("::" if family == socket.AF_INET6 else "", port))
            listener.listen(backlog)
            return listener
        except OSError as error:
            listener.close()
            if family == socket.AF_INET or error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise
    raise OSError(errno.EAFNOSUPPORT, "no TCP on this machine")
