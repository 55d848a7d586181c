"""One command on hosts whose words somebody takes slowly."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from types import FrameType

import pytest

from orchestrator.connectors import connectors
from orchestrator.errors import ClusterError
from orchestrator.fleet import backlog
from orchestrator.model import Host
from orchestrator.phases.command import CommandEnded, CommandOutput, Commands, Failed

SAID = 30_000_000  # bytes of each host
LIMIT = 120.0  # seconds; a bound on what must happen, never a wait


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    monkeypatch.setattr(backlog, "ROOM", 4 << 20)
    hosts = [
        Host(name, "local", "127.0.0.1", agent_python=sys.executable, state=str(tmp_path / name))
        for name in ("one", "two")
    ]
    with closing(Commands(connectors(), hosts, ("head", "-c", str(SAID), "/dev/zero"))) as made:
        yield made


def readers_that_wait() -> int:
    """How many threads wait for us to take what they have read."""
    found = 0
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None and frame.f_code is not backlog.Backlog.wait.__code__:
            frame = frame.f_back
        found += frame is not None
    return found


def test_what_waits_for_a_slow_terminal_is_bounded(commands: Commands) -> None:
    commands.start()
    waiting = commands._backlog
    deadline = time.monotonic() + LIMIT
    while readers_that_wait() < 2 and waiting.size < 2 * SAID:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    said = {"one": 0, "two": 0}
    most, ended = 0, list[CommandEnded]()
    while len(ended) < 2:
        most = max(most, waiting.size)
        word = commands.next(timeout=LIMIT)
        assert word is not None
        if isinstance(word, CommandOutput):
            said[word.host] += len(word.data)
        elif isinstance(word, CommandEnded):
            ended.append(word)
    assert [end.status for end in ended] == [0, 0]
    assert said == {"one": SAID, "two": SAID}
    assert most < backlog.ROOM + (2 << 20)  # what the two readers had at hand
    assert waiting.size == 0


@pytest.mark.parametrize(
    ("refused", "failed"),
    [("start two", {"two"}), ("pulse", {"one", "two"}), ("pool 1", set()), ("pool 0", None)],
)
def test_a_machine_without_another_thread_keeps_nobody_waiting(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, refused: str, failed: set[str] | None
) -> None:
    """`ulimit -u`, or a container with few processes, where Python has none of the threads of a name."""
    start = threading.Thread.start

    def limited(self: threading.Thread) -> None:
        if self.name == refused:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    commands.start()
    ended: dict[str, bool] = {}
    with pytest.raises(ClusterError) if failed is None else nullcontext():
        while len(ended) < 2:
            word = commands.next(timeout=20.0)
            assert word is not None
            if isinstance(word, CommandEnded | Failed):
                ended[word.host] = isinstance(word, Failed)
    if failed is not None:
        assert {host for host, is_bad in ended.items() if is_bad} == failed
