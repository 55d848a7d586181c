"""Ports for what a test starts later: until then nobody else has them, whichever worker or clone asks."""

import os
import random
import socket
from collections import deque

# Below those that the kernel hands out to outgoing connections, and those of rehearsals.
_RANGE = range(10_000, 15_000)
_MOST = 200  # claims of one process: whoever asked for the older ones is over
_claims: deque[int] = deque()


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports nothing listens on; a claim on each keeps other tests from it, and ends with this process."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_RANGE, len(_RANGE)):
        if len(found) == count:
            break
        if _claim(port):
            found.append(port)
    assert len(found) == count, f"no {count} ports are free"
    return found


def _claim(port: int) -> bool:
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0orchestrate-tests/{port}")  # no file: the kernel forgets it with its last holder
        _listen(port).close()
    except OSError:
        claim.close()
        return False
    _claims.append(claim.detach())
    if len(_claims) > _MOST:
        os.close(_claims.popleft())
    return True


def _listen(port: int) -> socket.socket:
    """On every address, as TensorFlow does; raise OSError when that is not possible."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
