"""One command on hosts, from a machine that has no room for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from orchestrator.connectors import connectors
from orchestrator.errors import ClusterError
from orchestrator.model import Host
from orchestrator.phases.command import CommandEnded, Commands, Failed

LIMIT = 120.0  # seconds; a bound on what must happen, never a wait


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    hosts = [
        Host(name, "local", "127.0.0.1", agent_python=sys.executable, state=str(tmp_path / name))
        for name in ("one", "two")
    ]
    with closing(Commands(connectors(), hosts, ("true",))) as made:
        yield made


@pytest.mark.parametrize(
    ("refused", "failed"),
    [("start two", {"two"}), ("pool 0", None)],
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
