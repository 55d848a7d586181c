"""What a keeper makes of the frames of one task."""

from __future__ import annotations

import json
import queue
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.bus import Bus
from orchestrator.events import Event, TaskExited, TaskProgressed
from orchestrator.fleet import Fleet, Frame
from orchestrator.model import TaskId
from orchestrator.phases import recovery
from orchestrator.phases.context import Run, Source
from orchestrator.phases.follow import Follower
from orchestrator.store import RunFolder
from tests.unit.plans import host, make

SESSION: Any = SimpleNamespace(host=host("a"), clock_offset=0.0)


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def follower(tmp_path: Path, told: list[Event], monkeypatch: pytest.MonkeyPatch) -> Follower:
    monkeypatch.setattr(recovery, "lose", lambda *_, **__: None)
    fleet = Fleet(cast("Any", None), lambda _: None)
    fleet.sessions["a"] = SESSION
    folder = RunFolder(tmp_path / "r1")
    folder.path.mkdir()
    (folder.path / "logs").mkdir()
    run = Run(folder, make(host("a")), Bus(), fleet, queue.SimpleQueue(), "me", Source())
    return Follower(run, "1", {TaskId.parse("worker/0"): "a"}, told.append)


def give(follower: Follower, kind: str, payload: bytes = b"", **header: Any) -> None:
    header = {"task": "worker/0", "kind": kind, **header}
    follower._run.inbox.put(Frame("a", SESSION, header, payload))
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
    follower.give_up("nothing tells why")
    (exited,) = told
    assert isinstance(exited, TaskExited)
    assert exited.lost == said
