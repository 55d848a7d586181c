"""Ports that a test uses later, reserved across all pytest workers and clones until then."""

import os
import random
import socket
from collections import deque

# Below the kernel's range for outgoing connections, and that of rehearsals.
_RANGE = range(10_000, 15_000)
_MOST = 200  # claims of one process; the tests that requested older ones have ended
_claims: deque[int] = deque()


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return free ports, each reserved against other tests until this process ends."""
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
    """Listen on every address, as TensorFlow does; raise OSError if that is impossible."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
