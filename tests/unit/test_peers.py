"""Tasks that succeed each for itself: when that is certain."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from orchestrator.events import PeersReported
from orchestrator.node.task import meeting
from orchestrator.run import peers
from orchestrator.wire import Peers

NONE, IDLE, MET, UNKNOWN = Peers.NONE, Peers.IDLE, Peers.MET, Peers.UNKNOWN
TABLES = Path(__file__).parent / "tables"
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


# --- a node's tables, as the kernel wrote them: two machines, 10.9.0.1 and 10.9.0.2, also fd09::1 and 2 ---

ROWS = {
    side: [
        row for table in ("tcp", "tcp6") for row in meeting.parse((TABLES / f"{side}-{table}").read_text())
    ]
    for side in ("client", "server")
}
LOGIN, TASK, CLOSED = ["1550242"], ["1550222"], ["0"]  # of the client: to port 22, to 2222, and a short one
LOOP, HARD_CODED, SIX = ["1550245", "1550246", "1550247"], ["1550238"], ["1550240"]
SERVED = ["1550213", "1550217"]  # the listener of 2222 and its end
SERVED_BY_BOTH = ["1550215", "1550237"]  # of 29500, for IPv6 and IPv4
ADDRESSES = ("10.9.0.1", "10.9.0.2", "fd09::2")


def places(*addresses: str, ports: tuple[str, ...] = ("08AE",)) -> meeting.Places:
    return meeting.Places({meeting.hexadecimal(one) for one in map(packed, addresses)}, set(ports))


def packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


@pytest.mark.parametrize(
    ("side", "rows", "own", "known", "met"),
    [
        ("client", LOOP, LOOP, ADDRESSES, False),  # a rendezvous with itself
        ("client", LOGIN, [], ADDRESSES, False),
        ("client", TASK, TASK, ADDRESSES, True),
        ("client", TASK, TASK, (), True),  # by the task's port, where the peer has another address
        ("client", HARD_CODED, HARD_CODED, ADDRESSES, True),
        ("client", HARD_CODED, HARD_CODED, (), False),  # to the internet
        ("client", SIX, SIX, ("fd09::2",), True),
        ("client", SIX, SIX, ("10.9.0.2",), False),
        ("server", SERVED, SERVED, (), True),
        ("server", SERVED_BY_BOTH, SERVED_BY_BOTH, (), True),  # the peer's name led nowhere
        ("server", ["1550241"], [], ADDRESSES, False),
    ],
)
def test_a_connection_with_another_machine(
    side: str, rows: list[str], own: list[str], known: tuple[str, ...], met: bool
) -> None:
    found = [row for row in ROWS[side] if row.inode in rows]
    assert len(found) == len(rows)
    assert meeting.far(found, set(own), places(*known)) == (met, set())


@pytest.mark.parametrize(
    ("rows", "unsure"),
    [(CLOSED, {"0"}), (HARD_CODED, {"1550238"}), (SIX, {"1550240"}), (LOGIN, set()), (LOOP, set())],
)
def test_what_is_closed_or_out_of_sight_may_be_a_connection(rows: list[str], unsure: set[str]) -> None:
    found = [row for row in ROWS["client"] if row.inode in rows]
    assert meeting.far(found, set(), places(*ADDRESSES)) == (False, unsure)


def test_a_connection_on_one_machine_is_one_with_another_process() -> None:
    assert meeting.near(ROWS["client"], set(LOOP)) == set()
    assert meeting.near(ROWS["client"], {"1550246"}) == {"1550247"}
    assert meeting.near(ROWS["client"], {"1550222"}) == set()
    # Two networks of one machine: the other end is in another table.
    assert meeting.near([*ROWS["client"], *ROWS["server"]], set(TASK)) == {"1550217"}
