"""A run's folder in which others, or a crash, have put something else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.errors import OrchestrateError
from orchestrator.events import Noted, Stamped, TaskStarted, decode
from orchestrator.names import RunId
from orchestrator.plainfile import open_plain
from orchestrator.store import RunFolder, RunReader
from orchestrator.store.bus import EventLog
from orchestrator.store.folder import decode_plan, encode_plan
from orchestrator.store.mirror import Mirror
from tests.unit.plans import host, make

STARTED = TaskStarted("worker/0", "gpu-1", "1", 42)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    plan = make(host("a"))
    made = RunFolder(tmp_path, RunId(plan.run))
    made.create(plan)
    EventLog(made)(Stamped(1.0, STARTED))
    Mirror(made, "1", "worker-0").add_log(0, b"one\n", [])
    return made


ODD: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
    "endless": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", ODD)
def test_only_files_are_opened_and_nobody_is_waited_for(tmp_path: Path, kind: str) -> None:
    ODD[kind](tmp_path / "it")
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_RDWR):
        with pytest.raises(OSError, match="no regular file"):
            open_plain(tmp_path / "it", flags)


DAMAGED = [
    b"\xff",
    b'{"at":1.0,"event":"Noted","text":"\xff"}',
    b'{"at":1.0,"event":"TaskStarted","task":"worker/0","host":"a","attempt":"../../x","pid":1}',
    b'{"at":1.0,"event":"Noted","text":"' + b"x" * (17 << 20) + b'"}',
    b"",
]


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_line_is_left_out_and_the_others_are_read(folder: RunFolder, line: bytes) -> None:
    if len(line) < 1 << 24:  # longer ones are not even looked at
        with pytest.raises(msgspec.ValidationError):
            decode(line)
    with folder.events.open("ab") as file:
        file.write(line + b"\n")
    EventLog(folder)(Stamped(3.0, STARTED))
    reader = RunReader(folder, wanted=lambda _: False)
    events = [stamped.event for stamped in reader.poll()]
    assert [event for event in events if not isinstance(event, Noted)] == [STARTED, STARTED]
    assert str(folder.events) in reader.damage
    assert sum(isinstance(event, Noted) for event in events) == 1


def test_a_plan_that_makes_no_sense_is_refused(folder: RunFolder) -> None:
    plan = json.loads(encode_plan(folder.read_plan()))
    changes: tuple[dict[str, Any], ...] = (
        {"run": "../x"},
        {"attempt": 0},
        {"name": "\0"},
        {"tasks": [{**plan["tasks"][0], "argv": []}]},
    )
    for change in changes:
        with pytest.raises(msgspec.ValidationError):
            decode_plan(json.dumps({**plan, **change}).encode())
    for data in (b"", b"\xff", b"[" * 100_000, b'{"run":' * 50_000, b"NaN", b"null"):
        with pytest.raises(msgspec.ValidationError):
            decode_plan(data)
    folder.plan.write_text(json.dumps({**plan, "run": "another"}))
    with pytest.raises(OrchestrateError) as refused:
        folder.read_plan()
    assert "it is the plan of run 'another'" in refused.value.why
