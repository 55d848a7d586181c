"""Ports that a test uses later, reserved across all pytest workers and clones until then."""

from collections import deque
from contextlib import ExitStack

from orchestrator.rehearsal.cluster import task_ports

_MOST = 50  # claims of one process; the tests that requested older ones have ended
_claims: deque[ExitStack] = deque()


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return free ports, each reserved against other tests until this process ends."""
    with ExitStack() as held:
        ports = task_ports(count, held)
        _claims.append(held.pop_all())
    if len(_claims) > _MOST:
        _claims.popleft().close()
    return ports
