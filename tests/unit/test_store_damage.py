"""A run's folder in which others, or a crash, have put something else."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.eventjson import decode
from orchestrator.events import Noted, Stamped, TaskStarted
from orchestrator.model import Order
from orchestrator.names import RunId
from orchestrator.plainfile import NotPlainError, make_folder, open_plain
from orchestrator.store import RunFolder, RunReader, runs
from orchestrator.store.eventlog import EventLog
from orchestrator.store.mirror import Mirror
from orchestrator.store.planfile import decode_plan, encode_plan
from orchestrator.store.reader import events_of
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


def fifo(path: Path) -> None:
    os.mkfifo(path)


def subfolder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


ODD = [fifo, subfolder, loop, endless, bound]
odd = pytest.mark.parametrize("make_odd", ODD, ids=lambda kind: kind.__name__)


def replace(path: Path, make_odd: Callable[[Path], None]) -> None:
    path.unlink(missing_ok=True)
    make_odd(path)


@odd
def test_only_files_are_opened_and_nobody_is_waited_for(
    tmp_path: Path, make_odd: Callable[[Path], None]
) -> None:
    make_odd(tmp_path / "it")
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_RDWR):
        with pytest.raises(NotPlainError, match="it is a "):
            open_plain(tmp_path / "it", flags)


@odd
def test_a_plan_that_is_no_file_is_one_error(folder: RunFolder, make_odd: Callable[[Path], None]) -> None:
    plan = folder.read_plan()
    replace(folder.plan, make_odd)
    with pytest.raises(UsageError, match="cannot be read") as refused:
        folder.read_plan()
    assert str(folder.plan) in refused.value.why
    assert [one.run for one in runs(folder.path.parent)] == [folder.run]
    folder.create(plan)  # from the nodes
    assert folder.read_plan() == plan


@odd
def test_events_that_are_no_file_are_one_error_and_moved_aside_by_the_next_keeper(
    folder: RunFolder, make_odd: Callable[[Path], None]
) -> None:
    replace(folder.events, make_odd)
    with pytest.raises(UsageError, match="the events of run") as refused:
        events_of(folder)
    assert str(folder.events) in refused.value.why
    lock = folder.take_lock()
    assert lock is not None
    EventLog(folder)(Stamped(2.0, STARTED))
    assert [stamped.at for stamped in events_of(folder)] == [2.0]
    os.close(lock)


@odd
def test_a_lock_and_a_control_of_another_kind(folder: RunFolder, make_odd: Callable[[Path], None]) -> None:
    replace(folder.lock, make_odd)
    replace(folder.control, make_odd)
    assert not folder.has_keeper()
    assert not folder.ask_keeper(Order.STOP) or make_odd is fifo
    lock = folder.take_lock()
    assert lock is not None
    assert folder.has_keeper()
    control = folder.open_control()
    assert folder.ask_keeper(Order.STOP)
    os.close(lock)
    os.close(control)


DAMAGED = [
    b"\xff",
    b'{"at":1.0,"event":[]}',
    b'{"at":1.0,"event":"Noted","text":"\xff"}',
    b'{"at":1e999,"event":"Noted","text":""}',
    b'{"at":1.0,"event":"TaskStarted","task":"worker/0","host":"a","attempt":"../../x","pid":1}',
    b"[" * 100_000,
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
        {"created": 1e300},
        {"created": -1},
        {"grace": -5},
        {"attempt": 0},
        {"name": "\0"},
        {"hosts": []},
        {"tasks": [*plan["tasks"], *plan["tasks"]]},
        {"tasks": [{**plan["tasks"][0], "id": {"role": "worker", "index": -1}}]},
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


def test_a_folder_is_made_though_another_command_removes_an_empty_one_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, mkdir, removed = tmp_path / "runs" / "new", Path.mkdir, list[Path]()

    def clean_first(self: Path, *rest: Any, **options: Any) -> None:
        if self == path and not removed:
            removed.append(self.parent)
            self.parent.rmdir()
        mkdir(self, *rest, **options)

    monkeypatch.setattr(Path, "mkdir", clean_first)
    make_folder(path)
    assert (path.is_dir(), removed) == (True, [path.parent])
