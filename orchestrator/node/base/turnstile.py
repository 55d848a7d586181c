"""TCP ports of this machine: listening on them, and claims that one process at a time may have.

A claim is a socket with a name in the abstract namespace (unix(7)). The kernel keeps one such namespace for
each network namespace, as it does with ports; all users see it, and a claim ends with the last process that
has its socket. Others learn which user has it, and nothing else.
"""

from __future__ import annotations

import errno
import socket
import struct
import time

from . import lenient

LOOK, LEASE = "look", "lease"
_QUEUE = 4096  # who asks for the holder stays in the queue: nobody accepts


class Taken(Exception):  # noqa: N818 - what is the case, not what is wrong
    """Somebody else has it."""

    def __init__(self, user: str) -> None:
        super().__init__(user)
        self.user = user


def pass_through(kind: str, port: int, patience: float = 0.0) -> int:
    """The claim, a descriptor: held until it is closed everywhere; raise Taken."""
    deadline = time.monotonic() + patience
    while True:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(_name(kind, port))
            claim.listen(_QUEUE)
            return claim.detach()
        except OSError as error:
            claim.close()
            if error.errno != errno.EADDRINUSE:
                raise
        if time.monotonic() >= deadline:
            raise Taken(holder(kind, port) or "somebody who is gone by now")
        time.sleep(0.005)


def holder(kind: str, port: int) -> str | None:
    """The user who has it; None when nobody does."""
    asker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    asker.setblocking(False)
    try:
        asker.connect(_name(kind, port))
        credentials = asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    except BlockingIOError:
        return "?"  # its queue is full
    except OSError:
        return None
    finally:
        asker.close()
    return lenient.user(struct.unpack("iII", credentials)[1])


def _name(kind: str, port: int) -> str:
    return f"\0orchestrate/{kind}/{port}"


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
