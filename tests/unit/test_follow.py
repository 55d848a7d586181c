"""What a keeper makes of the frames of one task."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.events import Event, GapPlace, LogGap, Stamped, TaskExited, TaskProgressed, TaskStarted
from orchestrator.fleet import Fleet, Lost, TaskNews
from orchestrator.fleet.session import Backlog
from orchestrator.model import TaskId
from orchestrator.names import RunId
from orchestrator.phases.context import CodeSource, Followed, Inbox, Run
from orchestrator.phases.follow import Follower
from orchestrator.phases.restart import recovery
from orchestrator.run.records import LONGEST, ReportLines
from orchestrator.store import RunFolder
from orchestrator.store.bus import Bus
from orchestrator.store.eventlog import EventLog
from orchestrator.store.mirror import Mirror
from tests.unit.plans import host, make

SESSION: Any = SimpleNamespace(host=host("a"), clock_offset=0.0, backlog=Backlog())


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def follower(tmp_path: Path, told: list[Event], monkeypatch: pytest.MonkeyPatch) -> Follower:
    monkeypatch.setattr(recovery, "lose", lambda *_, **__: None)
    fleet = Fleet(cast("Any", None), lambda _: None)
    fleet.sessions["a"] = SESSION
    folder = RunFolder(tmp_path, RunId("r1"))
    folder.path.mkdir()
    (folder.path / "logs").mkdir()
    run = Run(folder, make(host("a")), Bus(), fleet, Inbox(), "me", CodeSource())
    return Follower(run, "1", {TaskId.parse("worker/0"): "a"}, told.append)


def give(follower: Follower, kind: str, payload: bytes = b"", **header: Any) -> None:
    header = {"stream": 1, "attempt": "1", "task": "worker/0", "kind": kind, **header}
    follower._run.inbox.put(TaskNews("a", SESSION, wire.news(header, payload), payload))
    follower.step(0.0)


def test_what_is_reported_behind_a_hole_is_told_once_it_is_filled(
    follower: Follower, told: list[Event]
) -> None:
    lines = [json.dumps({"kind": "progress", "step": step}).encode() + b"\n" for step in range(1, 7)]
    give(follower, "report", lines[0], offset=0)
    give(follower, "report", b"".join(lines[2:]), offset=len(lines[0] + lines[1]))
    give(follower, "report", b"".join(lines), offset=0)
    assert [event.step for event in told if isinstance(event, TaskProgressed)] == [1, 2, 3, 4, 5, 6]


def test_a_task_that_kill_does_not_end_is_told_by_its_supervisors_words(
    follower: Follower, told: list[Event]
) -> None:
    said = "KILL does not end pid 7 (python): another user's, or stuck in the kernel"
    give(follower, "state", state={"state": "stopping", "message": said})
    follower._run.fleet.sessions.clear()
    follower.give_up("nothing tells why")
    (exited,) = told
    assert isinstance(exited, TaskExited)
    assert exited.lost == said


@pytest.mark.parametrize("task", ["worker/1", "ps/7"])  # what is no task's name does not pass the wire
def test_a_host_tells_nothing_of_the_tasks_of_another_one(
    follower: Follower, told: list[Event], task: str
) -> None:
    elsewhere = TaskId.parse("worker/1")
    follower._placed[elsewhere] = "b"
    follower._mirrors[elsewhere] = Mirror(follower._run.folder, "1", elsewhere.slug)
    final = {"state": "exited", "exit_code": 0}
    give(follower, "log", b"forged\n", task=task, offset=0, times=[])
    give(follower, "report", b'{"kind": "progress", "step": 1}\n', task=task, offset=0)
    give(follower, "state", task=task, state=final)
    follower._run.inbox.put(Followed(SESSION, (task,)))
    follower.step(0.0)
    assert not follower.ends
    assert told == []
    assert not follower._run.folder.log("1", elsewhere.slug).read_bytes()


def test_nobody_waits_for_the_tasks_of_a_host_that_lies(follower: Follower, told: list[Event]) -> None:
    error = HostError("a", "does not speak our protocol", kind="protocol", why="it said hello twice")
    follower._run.inbox.put(Lost("a", SESSION, error))
    follower.step(0.0)
    (exited,) = told
    assert isinstance(exited, TaskExited)
    assert exited.lost == "its host does not speak our protocol: it said hello twice"
    assert follower.waiting() == []


def gap(count: int) -> dict[str, Any]:
    return {"bytes": count, "why": "No space left on device", "offset": 0, "ns": 1}


def missing(told: list[Event]) -> int:
    return sum(event.count for event in told if isinstance(event, LogGap))


def final(*gaps: dict[str, Any]) -> dict[str, Any]:
    known = {"state": "exited", "want": "stop", "exit_code": 0, "started_ns": 10**9, "ended_ns": 2 * 10**9}
    return {**known, "gaps": list(gaps)}


def test_a_gap_that_grows_is_said_to_its_end(follower: Follower, told: list[Event]) -> None:
    """Whatever the task ended of: here it was stopped."""
    give(follower, "state", state={"state": "running", "gaps": [gap(100)]})
    give(follower, "state", state={"state": "running", "gaps": [gap(40_000)]})
    give(follower, "state", state=final(gap(63_009)))
    assert missing(told) == 63_009
    assert isinstance(told[-1], TaskExited)
    assert len(told) == 3  # not one for each time that it grew


def test_what_an_earlier_keeper_said_is_not_missing_twice(tmp_path: Path, told: list[Event]) -> None:
    fleet = Fleet(cast("Any", None), lambda _: None)
    fleet.sessions["a"] = SESSION
    folder = RunFolder(tmp_path, RunId("r1"))
    (folder.path / "logs").mkdir(parents=True)
    log = EventLog(folder)
    log(Stamped(1.0, TaskStarted("worker/0", "a", "1", 7)))
    log(Stamped(1.0, LogGap("worker/0", GapPlace.NODE, 100, "")))
    run = Run(folder, make(host("a")), Bus(), fleet, Inbox(), "me", CodeSource())
    later = Follower(run, "1", {TaskId.parse("worker/0"): "a"}, told.append)
    give(later, "state", state=final(gap(150)))
    assert missing(told) == 50


def test_a_task_took_as_long_as_its_supervisor_measured(follower: Follower, told: list[Event]) -> None:
    """The node's clock was set forward by an hour while it ran."""
    give(follower, "state", state={**final(), "ended_ns": 3_602 * 10**9, "seconds": 1.5})
    assert [event.seconds for event in told if isinstance(event, TaskExited)] == [1.5]


def test_a_report_without_a_line_end_is_not_held() -> None:
    """Each byte is copied once, and no more than one record is kept, however long the line is."""
    lines = ReportLines()
    chunk = b"x" * (64 << 10)
    held = []
    for _ in range(100):
        assert lines.feed(chunk) == []
        held.append(lines.held)
    assert max(held) <= LONGEST
    assert sum(held) < 10 * LONGEST
    assert lines.feed(b'\n{"kind"') == []
    assert lines.feed(b': "ready"}\n' + b"\n") == [b'{"kind": "ready"}', b""]
    assert lines.held == 0
