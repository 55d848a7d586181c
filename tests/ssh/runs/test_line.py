"""`launch --wait`: first come, first served, all hosts or none; a launch that dies leaves nothing queued."""

import os
import re
import signal
import socket
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk, until

TRAINS = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""


@pytest.fixture
def others(four: Desk, tmp_path: Path) -> Iterator[list[Desk]]:
    """Two more controllers with the same hosts."""
    with (
        closing(Desk(four.cluster, tmp_path / "second")) as one,
        closing(Desk(four.cluster, tmp_path / "third")) as two,
    ):
        yield [one, two]


def train(desk: Desk, *numbers: int, wait: bool = True) -> Path:
    """Launch on these hosts; return the file that ends the training."""
    desk.write_hosts([desk.cluster.hosts[number] for number in numbers])
    desk.script("t.py", TRAINS)
    enough = desk.folder / "enough"
    desk.launch(*(["--wait"] if wait else []), "--", "t.py", str(enough))
    return enough


def places(run: str) -> list[str]:
    found = re.findall(r"@orch-line/\S+", Path("/proc/net/unix").read_text())
    return [name for name in found if f"/{run}/" in name]


def runs(desk: Desk) -> bool:
    return len(desk.named("TaskStarted")) > 0


def ended(desk: Desk) -> dict[str, Any]:
    """Wait for the run's end, and check that it has left all queues."""
    found: list[dict[str, Any]] = until("it ends", lambda: desk.named("RunEnded"))
    until("no place is left", lambda: not places(desk.run_id()))
    return found[0]


def waits_behind(desk: Desk, run: str) -> bool:
    return any(run in event["text"] for event in desk.named("Noted"))


def test_first_come_first_served_all_hosts_or_none(four: Desk, others: list[Desk]) -> None:
    second, third = others
    first_ends = train(four, 0, 1, wait=False)
    until("the first runs", lambda: runs(four))
    second_ends = train(second, 1, 2)
    until("the second waits for the first", lambda: waits_behind(second, four.run_id()))
    third_ends = train(third, 2, 3)
    until("the third waits for the second", lambda: waits_behind(third, second.run_id()))
    words = rf"in the queue behind run {second.run_id()} of \S+@\S+ \(since .{{9}}\), on rehearsal-03"
    # Possibly later, while a parallel test holds the machine that only the third requests.
    assert any(re.match(words + "(;|$)", event["text"]) for event in third.named("Noted"))
    assert not runs(second)
    assert not runs(third)
    first_ends.touch()
    until("the second runs", lambda: runs(second))
    assert not runs(third)
    second_ends.touch()
    until("the third runs", lambda: runs(third))
    third_ends.touch()
    for desk in (four, second, third):
        assert ended(desk)["outcome"] == "succeeded"


def test_a_process_holding_the_queue_lock_is_reported(four: Desk) -> None:
    """Any user's process can hold it, and the launch used to wait silently."""
    place = f"{zlib.crc32(four.cluster.hosts[0].address.encode()):08x}"
    with socket.socket(socket.AF_UNIX) as turn:

        def taken() -> bool:  # a parallel test may briefly hold it
            with suppress(OSError):
                turn.bind(f"\0orchestrate-turn/{place}")
            return bool(turn.getsockname())

        until("the turn is ours", taken)
        train(four, 0).touch()
        until("the wait is reported", lambda: waits_behind(four, "behind a process that blocks the queue"))
        assert not runs(four)
    assert ended(four)["outcome"] == "succeeded"


def test_a_launch_that_dies_in_the_queue_is_not_waited_for(four: Desk, others: list[Desk]) -> None:
    second, third = others
    first_ends = train(four, 0, wait=False)
    until("the first runs", lambda: runs(four))
    train(second, 0, 1)
    until("the second waits", lambda: waits_behind(second, four.run_id()))
    third_ends = train(third, 1)
    until("the third waits", lambda: waits_behind(third, second.run_id()))
    os.kill(second.keeper(), signal.SIGKILL)
    until("the third runs", lambda: runs(third))
    assert not places(second.run_id())
    first_ends.touch()
    third_ends.touch()
    assert ended(four)["outcome"] == ended(third)["outcome"] == "succeeded"


def test_a_lost_host_ends_the_wait_and_a_stop_leaves_the_queue(four: Desk, others: list[Desk]) -> None:
    second, third = others
    first_ends = train(four, 0, wait=False)
    until("the first runs", lambda: runs(four))
    second.timings = {"host_return": 1.0}
    train(second, 0, 3)
    train(third, 0, 1)
    until("both wait", lambda: waits_behind(second, four.run_id()) and waits_behind(third, four.run_id()))
    four.kill_sshd(four.cluster.servers[3])
    end = ended(second)
    assert end["status"] == ExitStatus.CLUSTER
    assert "rehearsal-04" in end["cause"]
    third.start("stop", third.run_id()).ended()
    assert ended(third)["outcome"] == "stopped"
    first_ends.touch()
    assert ended(four)["outcome"] == "succeeded"


def test_a_spare_replaces_a_host_that_is_lost_in_the_queue(four: Desk, others: list[Desk]) -> None:
    """The wait continues, and keeps its place in the other queues."""
    second, third = others
    first_ends = train(four, 0, wait=False)
    until("the first runs", lambda: runs(four))
    second.timings = {"host_return": 1.0, "pauses": [0.05]}
    hosts = four.cluster.hosts
    second.write_hosts([hosts[0], hosts[3], replace(hosts[2], spare=True)], "[job]\nhost_timeout = 1\n")
    second.script("t.py", TRAINS)
    second.launch("--wait", "--max-restarts", "1", "--", "t.py", str(second.folder / "enough"))
    until("it waits", lambda: waits_behind(second, four.run_id()))
    third_ends = train(third, 0)
    until("the third waits, too", lambda: waits_behind(third, four.run_id()))
    four.kill_sshd(four.cluster.servers[3])
    until("it waits with the spare", lambda: second.named("HostReplaced"))
    assert not second.named("TaskStarted")
    first_ends.touch()
    until("it runs", lambda: len(second.named("TaskStarted")) == 2)
    assert not runs(third)
    (second.folder / "enough").touch()
    third_ends.touch()
    end = ended(second)
    assert (end["outcome"], end["attempts"]) == ("succeeded", 2)
    assert ended(third)["outcome"] == "succeeded"
