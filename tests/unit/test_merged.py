from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from orchestrator import events as ev
from orchestrator.events import Event, LogLine, Outcome, Stamped
from orchestrator.names import RunId
from orchestrator.store import MergedReader, RunFolder, RunReader

NOW = 1000.0


def line(task: int, at: float) -> Stamped:
    return Stamped(at, LogLine(f"worker/{task}", f"gpu-0{task}", f"{at:g}", at))


def exited(task: int, at: float) -> Stamped:
    return Stamped(at, ev.TaskExited(f"worker/{task}", "h", "1", 0, None, "", 1.0, at, stopped=False))


END = Stamped(NOW, ev.RunEnded("r", Outcome.SUCCEEDED, 0, 1.0, "", "", (), ""))

# What each look at the folder brings, and what is shown after each. Now is 1000.
LOOKS: list[tuple[list[Stamped], list[str]]] = [
    ([line(0, 990), Stamped(991, ev.Noted("x")), line(0, 997), line(1, 992)], ["990", "Noted", "992", "997"]),
    ([line(1, 999.5), line(0, 999.2)], []),  # somebody may have said something earlier
    ([line(1, 998.5), Stamped(998.4, ev.Noted("x"))], ["Noted", "998.5"]),
    ([line(1, 999.8), line(0, 999.7), exited(0, 999.6), Stamped(999.65, ev.Noted("y"))], []),
    (
        [line(1, 999.9), END],
        ["999.2", "999.5", "999.7", "TaskExited", "Noted", "999.8", "999.9", "RunEnded"],
    ),
]


def name(stamped: Stamped) -> str:
    event: Event = stamped.event
    return event.text if isinstance(event, LogLine) else type(event).__name__


def test_lines_come_in_the_order_of_their_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    looks = iter(LOOKS)
    monkeypatch.setattr(time, "time", lambda: NOW)
    reader = MergedReader(RunFolder(tmp_path_factory.mktemp("runs"), RunId("r")))
    current: list[Stamped] = []

    def poll(self: RunReader) -> Iterator[Stamped]:
        self.ended |= END in current
        yield from current

    monkeypatch.setattr(RunReader, "poll", poll)
    for brought, shown in looks:
        current[:] = brought
        assert [name(one) for one in reader.poll()] == shown
