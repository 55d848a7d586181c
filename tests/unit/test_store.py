from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.events import (
    Event,
    LogGap,
    LogLine,
    Outcome,
    RunEnded,
    Stamped,
    StopBy,
    StopRequested,
    TaskExited,
    TaskStarted,
)
from orchestrator.model import Completion, Host, Order, RunPlan
from orchestrator.names import RunId
from orchestrator.store import RunFolder, RunReader, find
from orchestrator.store.bus import Bus
from orchestrator.store.eventlog import EventLog
from orchestrator.store.mirror import Mirror
from orchestrator.store.reader import last_lines
from orchestrator.store.validations import Validations

STARTED = TaskStarted("worker/0", "gpu-1", "1", 42)
EXITED = TaskExited("worker/0", "gpu-1", "1", 0, None, "", 1.0, 2.0, stopped=False)
ENDED = RunEnded("r", Outcome.SUCCEEDED, 0, 1.0, "", "", (), "")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "a'; echo foo", RunId("20261121-010203-abcd"))
    made.create(plan_of(made.run))
    return made


def plan_of(run: str, name: str = "") -> RunPlan:
    return RunPlan(run, name, "me", 1.0, (), {}, (), (), Completion.ALL, 30, 2, 3600, ())


def emit(folder: RunFolder, *events: Event) -> None:
    log = EventLog(folder)
    for event in events:
        log(Stamped(1.0, event))


def seen(reader: RunReader) -> list[str]:
    return [
        stamped.event.text if isinstance(stamped.event, LogLine) else type(stamped.event).__name__
        for stamped in reader.poll()
    ]


def test_lines_come_after_the_start_and_before_the_exit(folder: RunFolder) -> None:
    mirror = Mirror(folder, "1", "worker-0")
    mirror.add_log(0, b"one\ntwo\nno newline", [(0, 5_000_000_000)])
    emit(folder, STARTED, EXITED, ENDED)
    reader = RunReader(folder)
    assert seen(reader) == ["TaskStarted", "one", "two", "no newline", "TaskExited", "RunEnded"]
    assert reader.ended
    assert seen(reader) == []


def test_a_growing_log_is_read_once(folder: RunFolder) -> None:
    emit(folder, STARTED)
    reader = RunReader(folder)
    mirror = Mirror(folder, "1", "worker-0")
    assert seen(reader) == ["TaskStarted"]
    mirror.add_log(0, b"on", [])
    assert seen(reader) == []
    mirror.add_log(2, b"e\ntw", [])
    assert seen(reader) == ["one"]
    mirror.add_log(6, b"o\n", [])
    emit(folder, EXITED)
    assert seen(reader) == ["two", "TaskExited"]


def test_lines_carry_the_time_of_their_bytes(folder: RunFolder) -> None:
    mirror = Mirror(folder, "1", "worker-0")
    mirror.add_log(0, b"one\ntwo\n", [(0, 5_000_000_000), (4, 7_000_000_000)])
    emit(folder, STARTED)
    times = [s.event.sent for s in RunReader(folder).poll() if isinstance(s.event, LogLine)]
    assert times == [5.0, 7.0]


def test_lines_of_several_tasks_come_by_their_time(folder: RunFolder) -> None:
    Mirror(folder, "1", "worker-0").add_log(0, b"a1\na4\n", [(0, 1_500_000_000), (3, 4_000_000_000)])
    Mirror(folder, "1", "worker-1").add_log(0, b"b2\nb3\n", [(0, 2_000_000_000), (3, 3_000_000_000)])
    other = TaskStarted("worker/1", "gpu-2", "1", 43)
    emit(folder, STARTED, other)
    EventLog(folder)(Stamped(3.5, StopRequested(StopBy.USER, "", 1.0)))
    EventLog(folder)(Stamped(9.0, EXITED))
    assert seen(RunReader(folder)) == [
        *("TaskStarted", "TaskStarted", "a1", "b2", "b3", "StopRequested", "a4", "TaskExited"),
    ]


@pytest.mark.parametrize(
    ("data", "last", "lines"),
    [
        (b"1\n2\n3\n", 2, ["2", "3"]),
        (b"1\n2\n3", 2, ["2", "3"]),
        (b"1\n2\n3\n", 0, []),
        (b"1\n2\n3\n", 9, ["1", "2", "3"]),
        (b"", 2, []),
        (b"x" * 300_000 + b"\n2\n", 1, ["2"]),
        (b"1\n\n3\n", 2, ["", "3"]),
    ],
)
def test_the_last_lines_of_a_log(folder: RunFolder, data: bytes, last: int, lines: list[str]) -> None:
    Mirror(folder, "1", "worker-0").add_log(0, data, [])
    emit(folder, STARTED, EXITED)
    assert seen(RunReader(folder, last=last)) == ["TaskStarted", *lines, "TaskExited"]


def test_a_display_that_is_far_behind_is_told_what_it_missed(folder: RunFolder) -> None:
    whole = b"".join(b"line %d\n" % number for number in range(10_000))
    Mirror(folder, "1", "worker-0").add_log(0, whole, [])
    emit(folder, STARTED, EXITED)
    events = [stamped.event for stamped in RunReader(folder, drop_behind=10_000).poll()]
    gaps = [event for event in events if isinstance(event, LogGap)]
    lines = [event for event in events if isinstance(event, LogLine)]
    assert sum(gap.count for gap in gaps) + len(lines) == 10_000
    assert lines[-1].text == "line 9999"


def test_other_tasks_lines_are_left_out(folder: RunFolder) -> None:
    Mirror(folder, "1", "worker-0").add_log(0, b"one\n", [])
    emit(folder, STARTED, EXITED)
    assert seen(RunReader(folder, wanted=lambda task: task == "worker/1")) == ["TaskStarted", "TaskExited"]


def test_nothing_comes_after_the_end() -> None:
    """A host that answers when the run was stopped already: its thread does not know."""
    told: list[Stamped] = []
    bus = Bus(told.append, clock=lambda: 1.0)
    bus.emit(STARTED)
    bus.emit_last(ENDED)
    bus.emit(EXITED)
    assert told == [Stamped(1.0, STARTED), Stamped(1.0, ENDED)]


def test_a_resumed_stream_leaves_no_double_and_no_hole(folder: RunFolder) -> None:
    mirror = Mirror(folder, "1", "worker-0")
    mirror.add_log(0, b"abcdef", [])
    mirror.close()
    again = Mirror(folder, "1", "worker-0")
    assert again.log_size == 6
    again.add_log(4, b"efgh", [])
    assert folder.log("1", "worker-0").read_bytes() == b"abcdefgh"
    with pytest.raises(ValueError, match="hole"):
        again.add_log(20, b"x", [])


def test_one_keeper_at_a_time(folder: RunFolder) -> None:
    lock = folder.take_lock()
    assert lock is not None
    assert folder.take_lock() is None
    assert folder.has_keeper()
    os.close(lock)
    assert not folder.has_keeper()


def test_requests_reach_a_keeper_that_listens_and_no_other(folder: RunFolder) -> None:
    assert not folder.ask_keeper(Order.STOP)
    control = folder.open_control()
    assert folder.ask_keeper(Order.STOP)
    assert os.read(control, 100) == b'{"want": "stop"}\n'
    os.close(control)
    assert not folder.ask_keeper(Order.STOP)


def make_run(root: Path, run: str, name: str = "") -> None:
    RunFolder(root, RunId(run)).create(plan_of(run, name))


def test_finding_a_run(tmp_path: Path) -> None:
    assert find(None, tmp_path) is None
    make_run(tmp_path, "20261121-010203-abcd", "first")
    make_run(tmp_path, "20261121-020304-wxyz")
    make_run(tmp_path, "20261122-020304-abcx", "first")

    def found(wanted: str | None) -> str | None:
        folder = find(wanted, tmp_path)
        return folder.run if folder is not None else None

    assert found(None) == "20261122-020304-abcx"
    assert found("wxyz") == "20261121-020304-wxyz"
    assert found("20261122") == "20261122-020304-abcx"
    assert found("first") == "20261122-020304-abcx"
    assert found("nothing") is None
    with pytest.raises(UsageError, match="2 runs match '20261121'"):
        found("20261121")
    make_run(tmp_path, "20261120-010203-mnop", "20261121")
    assert found("20261121") == "20261120-010203-mnop"


def test_the_last_lines_shown_are_not_blank(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert last_lines(path, 3) == ()
    path.write_bytes(b"one\n\nbar 1\rbar 2\n\x1b[2Jthree\n\n")
    assert last_lines(path, 2) == ("bar 2", "three")


def test_of_a_line_longer_than_what_is_looked_at_the_end_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"Epoch 1\n" + b"".join(b"\r step %d" % step for step in range(20_000)))
    assert last_lines(path, 3) == (" step 19999",)
    path.write_bytes(path.read_bytes() + b"\ndone\n")
    assert last_lines(path, 3) == ("done",)


@pytest.mark.parametrize("there", [False, True], ids=["new", "of an open umask before"])
def test_others_can_exchange_no_run_whatever_the_umask_is(tmp_path: Path, *, there: bool) -> None:
    """Who may rename a run's folder puts one of theirs there: its notify.json names a command."""
    runs = tmp_path / "state" / "orchestrate" / "runs"
    before = os.umask(0)
    try:
        if there:
            runs.mkdir(parents=True)
            runs.parent.parent.chmod(0o755)  # the user's own
        make_run(runs, "20261121-010203-abcd")
        Validations(runs.parent / "validations").write(Host("a", "a", "a"), "x")
    finally:
        os.umask(before)
    made = [tmp_path / "state", *(tmp_path / "state").rglob("*")]
    assert [path for path in made if path.stat().st_mode & 0o022] == []
