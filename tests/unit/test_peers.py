"""Tasks that succeed each for itself: when that is certain."""

from __future__ import annotations

import pytest

from orchestrator.events import PeersReported
from orchestrator.run import peers
from orchestrator.wire import Peers

NONE, IDLE, MET, UNKNOWN = Peers.NONE, Peers.IDLE, Peers.MET, Peers.UNKNOWN
BOTH = ("worker/0", "worker/1")


@pytest.mark.parametrize(
    ("states", "trains", "connected"),
    [
        ((NONE, NONE), True, False),
        ((NONE, NONE), False, False),
        ((IDLE, IDLE), True, True),
        ((NONE, IDLE), True, True),
        ((IDLE, IDLE), False, None),
        ((NONE, MET), True, None),
        ((IDLE, MET), True, None),
        ((NONE, UNKNOWN), True, None),
        ((NONE,), True, None),
    ],
)
def test_tasks_are_apart_if_every_node_says_so(
    states: tuple[Peers, ...], trains: bool, connected: bool | None
) -> None:
    found = peers.apart(dict(zip(BOTH, states, strict=False)), BOTH[: len(states)], trains=trains)
    assert found == (None if connected is None else PeersReported(BOTH, connected))
