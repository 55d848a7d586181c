"""The folder of a run: its readers, the search for runs, and the effects of damage."""

import json
import os
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from orchestrator import events as ev
from orchestrator.cli.main import main
from orchestrator.errors import ExitStatus, OrchestrateError, UsageError
from orchestrator.events import Noted, Stamped, TaskStarted, decode
from orchestrator.model import Host, RunPlan
from orchestrator.names import RunId
from orchestrator.plainfile import open_plain
from orchestrator.run.view import replay
from orchestrator.store import RunFolder, RunReader, find, new_run_id, next_run_id, runs_root
from orchestrator.store.bus import Bus, EventLog
from orchestrator.store.folder import decode_plan, encode_plan
from orchestrator.store.known import Validations
from orchestrator.store.mirror import Mirror
from orchestrator.store.reader import events_of, last_lines
from orchestrator.store.standing import standing
from tests.unit import plans
from tests.unit.plans import host, make

STARTED = ev.TaskStarted("worker/0", "gpu-1", "1", 42)
EXITED = ev.TaskExited("worker/0", "gpu-1", "1", 0, None, "", 1.0, 2.0, stopped=False)
ENDED = ev.RunEnded("r", ev.Outcome.SUCCEEDED, 0, 1.0, "", "", (), "")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "a'; echo foo", RunId("20261121-010203-abcd"))
    made.create(plan_of(made.run))
    return made


def plan_of(run: str, name: str = "") -> RunPlan:
    return replace(plans.make(plans.host("gpu-1")), run=run, name=name)


def emit(folder: RunFolder, *events: ev.Event) -> None:
    log = EventLog(folder)
    for event in events:
        log(ev.Stamped(1.0, event))


def seen(reader: RunReader) -> list[str]:
    return [
        stamped.event.text if isinstance(stamped.event, ev.LogLine) else type(stamped.event).__name__
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


def test_lines_of_several_tasks_are_ordered_by_time(folder: RunFolder) -> None:
    Mirror(folder, "1", "worker-0").add_log(0, b"a1\na4\n", [(0, 1_500_000_000), (3, 4_000_000_000)])
    Mirror(folder, "1", "worker-1").add_log(0, b"b2\nb3\n", [(0, 2_000_000_000), (3, 3_000_000_000)])
    other = ev.TaskStarted("worker/1", "gpu-2", "1", 43)
    emit(folder, STARTED, other)
    EventLog(folder)(ev.Stamped(3.5, ev.StopRequested(ev.StopBy.USER, "", 1.0)))
    EventLog(folder)(ev.Stamped(9.0, EXITED))
    assert seen(RunReader(folder)) == [
        *("TaskStarted", "TaskStarted", "a1", "b2", "b3", "StopRequested", "a4", "TaskExited")
    ]


@pytest.mark.parametrize(
    ("data", "last", "lines"),
    [
        (b"1\n2\n3\n", 2, ["2", "3"]),
        (b"1\n2\n3", 2, ["2", "3"]),
        (b"1\n2\n3\n", 0, []),
        (b"x" * 300_000 + b"\n2\n", 1, ["2"]),
        (b"1\n\n3\n", 2, ["", "3"]),
    ],
)
def test_the_last_lines_of_a_log(folder: RunFolder, data: bytes, last: int, lines: list[str]) -> None:
    Mirror(folder, "1", "worker-0").add_log(0, data, [])
    emit(folder, STARTED, EXITED)
    assert seen(RunReader(folder, last=last)) == ["TaskStarted", *lines, "TaskExited"]


def test_a_display_that_lags_behind_is_notified_of_skipped_lines(folder: RunFolder) -> None:
    whole = b"".join(b"line %d\n" % number for number in range(10_000))
    Mirror(folder, "1", "worker-0").add_log(0, whole, [])
    emit(folder, STARTED, EXITED)
    events = [stamped.event for stamped in RunReader(folder, drop_behind=10_000).poll()]
    gaps = [event for event in events if isinstance(event, ev.LogGap)]
    lines = [event for event in events if isinstance(event, ev.LogLine)]
    assert sum(gap.count for gap in gaps) + len(lines) == 10_000
    assert lines[-1].text == "line 9999"


def test_nothing_comes_after_the_end() -> None:
    """A host may reply after the run was stopped, on a thread that has not noticed."""
    received: list[ev.Stamped] = []
    bus = Bus(received.append)
    bus.emit(STARTED)
    bus.emit(ENDED)
    bus.emit(EXITED)
    assert [stamped.event for stamped in received] == [STARTED, ENDED]


def test_a_resumed_stream_has_no_duplicates_and_no_gaps(folder: RunFolder) -> None:
    mirror = Mirror(folder, "1", "worker-0")
    mirror.add_log(0, b"abcdef", [])
    mirror.close()
    again = Mirror(folder, "1", "worker-0")
    assert again.log.size == 6
    again.add_log(4, b"efgh", [])
    assert folder.log("1", "worker-0").read_bytes() == b"abcdefgh"
    with pytest.raises(ValueError, match="hole"):
        again.add_log(20, b"x", [])


@pytest.mark.parametrize("spoil", [lambda path: os.truncate(path, 0), Path.unlink])
def test_a_log_that_a_user_emptied_is_fetched_again(folder: RunFolder, spoil: Callable[[Path], None]) -> None:
    """The user made room on this machine; the host is not at fault."""
    mirror, path = Mirror(folder, "1", "worker-0"), folder.log("1", "worker-0")
    mirror.add_log(0, b"abc", [])
    spoil(path)
    with pytest.raises(OSError, match="truncated or removed"):
        mirror.add_log(3, b"def", [])
    mirror.add_log(mirror.log.size, b"abcdef", [])
    assert path.read_bytes() == b"abcdef"


def make_run(root: Path, run: str, name: str = "") -> None:
    RunFolder(root, RunId(run)).create(plan_of(run, name))


def test_finding_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store.known.runs_root", lambda: tmp_path)
    assert find(None) is None
    make_run(tmp_path, "20261121-010203-abcd", "first")
    make_run(tmp_path, "20261121-020304-wxyz")
    make_run(tmp_path, "20261122-020304-abcx", "first")

    def found(wanted: str | None) -> str | None:
        folder = find(wanted)
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

    # A run that started tasks is not hidden by a later refused launch, not even one of the same name.
    emit(RunFolder(tmp_path, RunId("20261121-010203-abcd")), STARTED)
    make_run(tmp_path, "20261123-020304-efgh", "first")
    for refused in ("20261122-020304-abcx", "20261123-020304-efgh"):
        emit(RunFolder(tmp_path, RunId(refused)), replace(ENDED, outcome=ev.Outcome.CLUSTER))
    assert found(None) == found("first") == "20261121-010203-abcd"
    assert found("abcx") == "20261122-020304-abcx"
    being_started = RunFolder(tmp_path, RunId("20261121-020304-wxyz"))
    lock = being_started.take_lock()
    assert lock is not None
    assert found(None) == being_started.run
    os.close(lock)
    # Now its keeper has been killed: what it started trains.
    emit(being_started, ev.PhaseStarted(ev.Phase.LAUNCH, 1))
    assert found(None) == being_started.run


def test_a_view_reflects_all_events(folder: RunFolder) -> None:
    """Even if the saved view is damaged or of other events; events it covers are not read again."""
    log = EventLog(folder)
    for number in range(449):
        log(ev.Stamped(number, ev.HostConnected(f"gpu-{number % 7}", 1.0, number)))
        if number % 7:  # the view is saved meanwhile
            continue
        whole = replay(events_of(folder))
        assert standing(folder) == (whole, folder.events.stat().st_size)
    saved = folder.view.read_bytes()
    for damage in (b"", saved[:-9], saved.replace(b"gpu-1", b"gpu-8", 1), b"1 2\n{}", b"[" * 100_000):
        folder.view.write_bytes(damage)
        assert standing(folder)[0] == whole
    folder.view.write_bytes(saved)
    head, tail = folder.events.read_bytes().split(b"\n", 1)
    folder.events.write_bytes(head.replace(b"gpu-0", b"xxxxx") + b"\n" + tail)
    assert standing(folder)[0] == whole
    folder.events.write_bytes(b"")
    emit(folder, STARTED)
    assert standing(folder)[0] == replay(events_of(folder))


def test_the_end_of_a_very_long_line_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"Epoch 1\n" + b"".join(b"\r step %d" % step for step in range(20_000)))
    assert last_lines(path, 3) == (" step 19999",)
    path.write_bytes(path.read_bytes() + b"\ndone\n")
    assert last_lines(path, 3) == ("done",)


@pytest.mark.parametrize("there", [False, True], ids=["new", "of an open umask before"])
def test_others_cannot_replace_a_run_whatever_the_umask(tmp_path: Path, *, there: bool) -> None:
    """Anyone who can rename a run's folder could substitute their own, whose request.json has a command."""
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


HOSTS = (plans.host("gpu-1"), plans.host("gpu-2"))
FAST, SLOW = "6/6 - 0s - loss: 0.5000 - 9ms/step", "6/6 - 0s - loss: 0.5100 - 12ms/step"


def made(run: str, *, attempts: int = 1) -> RunFolder:
    plan = replace(plans.make(*HOSTS), run=run, command=("train.py",), notes=(f"note of {run}",), created=1e9)
    folder = RunFolder(runs_root(), RunId(run))
    folder.create(plan)
    log = EventLog(folder)
    for attempt in map(str, range(1, attempts + 1)):
        for task, (on, text) in enumerate(zip(HOSTS, (FAST, SLOW), strict=True)):
            lines = [b"Epoch 1/1\n", text.encode() + b"\n", b"attempt %s\n" % attempt.encode()]
            places = [sum(map(len, lines[:number])) for number in range(3)]
            began = int(attempt) * 100
            times = [(place, (began + 10 * number) * 10**9) for number, place in enumerate(places)]
            Mirror(folder, attempt, f"worker-{task}").add_log(0, b"".join(lines), times)
            log(ev.Stamped(began - 1, ev.TaskStarted(f"worker/{task}", on.name, attempt, 1)))
        for task, on in enumerate(HOSTS):
            end = ev.TaskExited(f"worker/{task}", on.name, attempt, 0, None, "", 1.0, 2.0, stopped=False)
            log(ev.Stamped(began + 90, end))
    log(ev.Stamped(1000.0, ev.RunEnded(run, ev.Outcome.SUCCEEDED, 0, 52.0, "", "", (), "")))
    return folder


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_tail_shows_the_requested_lines(capfd: pytest.CaptureFixture[str]) -> None:
    made("20261121-010203-abcd", attempts=2)

    def tail(*words: str) -> list[str]:
        assert main(["tail", "abcd", *words]) == ExitStatus.OK
        return [line.partition("| ")[2] for line in capfd.readouterr().out.splitlines()]

    whole = ["Epoch 1/1", "Epoch 1/1", FAST, SLOW]
    assert tail() == [*whole, "attempt 1", "attempt 1", *whole, "attempt 2", "attempt 2"]
    assert tail("--task", "worker/1", "-n", "1") == ["attempt 1", "attempt 2"]
    assert tail("-n", "1") == ["attempt 1", "attempt 1", "attempt 2", "attempt 2"]


def test_json_lines_are_selected_and_never_folded(capfd: pytest.CaptureFixture[str]) -> None:
    made("20261121-010203-abcd")
    words = ["tail", "--json", "-n", "3", "--timestamps"]
    assert main(words) == ExitStatus.OK
    events = [ev.decode(line.encode()).event for line in capfd.readouterr().out.splitlines()]
    lines = [line for line in events if isinstance(line, ev.LogLine)]
    assert [(line.task, line.text, line.sent) for line in lines[:2]] == [
        ("worker/0", "Epoch 1/1", 100.0),
        ("worker/1", "Epoch 1/1", 100.0),
    ]
    assert isinstance(events[-1], ev.RunEnded)


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_copy_to_a_full_disk_fails(
    words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made("20261121-010203-abcd")
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["tail", *words]) == ExitStatus.HERE
    assert "could not be written: No space left on device" in capfd.readouterr().err


def test_earlier_events_are_skipped_on_request() -> None:
    folder = made("20261121-010203-abcd")
    reader = RunReader(folder)
    reader.start = len(b"".join(folder.events.read_bytes().splitlines(keepends=True)[:4]))
    assert [type(stamped.event) for stamped in reader.poll()] == [ev.RunEnded]


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),
    [
        ("", [*range(3, 23)], "1 older run, 3 refused launches"),
        ("-n 2", [21, 22], "19 older runs, 3 refused launches"),
        ("--all", range(24), ""),
        ("--json", range(24), ""),
    ],
)
def test_listed_runs(words: str, shown: list[int], hidden: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = time.mktime((2026, 11, 21, 3, 0, 0, 0, 0, -1))
    outcomes = {0: ev.Outcome.FAILED, **dict.fromkeys((1, 2, 23), ev.Outcome.CLUSTER)}
    for number in range(24):
        folder = RunFolder(runs_root(), RunId(f"20261121-{number:06}-abcd"))
        folder.create(replace(plan_of(folder.run), created=first + 3600 * number))
        outcome = outcomes.get(number, ev.Outcome.SUCCEEDED)
        started = [] if outcome is ev.Outcome.CLUSTER else [STARTED]
        emit(folder, *started, *([replace(ENDED, outcome=outcome)] if number != 22 else []))
    assert main(["runs", *words.split()]) == ExitStatus.OK
    output = capsys.readouterr()
    assert [int(number) for number in re.findall(r"20261121-(\d{6})-abcd", output.out)] == list(shown)
    assert output.err == (f"not shown: {hidden}; `orchestrate runs --all` lists all\n" if hidden else "")


def test_only_one_of_two_launches_gets_the_same_id(tmp_path: Path) -> None:
    first, second = (RunFolder(tmp_path / "runs", RunId("20261121-010203-abcd")) for _ in range(2))
    assert first.claim(plan_of(first.run, "first"))
    assert not second.claim(plan_of(second.run, "second"))
    assert first.read_plan().name == "first"
    with ThreadPoolExecutor(8) as pool:
        for round_ in range(20):
            folder = RunFolder(tmp_path / "runs", RunId(f"20261121-010203-{round_}"))
            claims = [pool.submit(folder.claim, plan_of(folder.run, str(number))) for number in range(8)]
            owners = [number for number, claim in enumerate(claims) if claim.result()]
            assert [folder.read_plan().name] == [str(number) for number in owners]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot make the run's folder"):
        RunFolder(tmp_path / "file" / "runs", first.id).claim(plan_of(first.run, "first"))


# --- A run's folder modified by others or by a crash ---

BEGUN = TaskStarted("worker/0", "gpu-1", "1", 42)


@pytest.fixture
def damaged(tmp_path: Path) -> RunFolder:
    plan = make(host("a"))
    made = RunFolder(tmp_path, RunId(plan.run))
    made.create(plan)
    EventLog(made)(Stamped(1.0, BEGUN))
    Mirror(made, "1", "worker-0").add_log(0, b"one\n", [])
    return made


ODD: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "damaged": Path.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
    "endless": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", ODD)
def test_only_regular_files_are_opened_without_blocking(tmp_path: Path, kind: str) -> None:
    ODD[kind](tmp_path / "it")
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_RDWR):
        with pytest.raises(OSError, match="not a regular file"):
            open_plain(tmp_path / "it", flags)


DAMAGED = [
    b"\xff",
    b'{"at":1.0,"event":"Noted","text":"\xff"}',
    b'{"at":1.0,"event":"TaskStarted","task":"worker/0","host":"a","attempt":"../../x","pid":1}',
    b'{"at":1.0,"event":"Noted","text":"' + b"x" * (17 << 20) + b'"}',
    b"",
]


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_line_is_skipped_and_the_others_are_read(damaged: RunFolder, line: bytes) -> None:
    if len(line) < 1 << 24:  # longer ones are not even read
        with pytest.raises(msgspec.ValidationError):
            decode(line)
    with damaged.events.open("ab") as file:
        file.write(line + b"\n")
    EventLog(damaged)(Stamped(3.0, BEGUN))
    reader = RunReader(damaged, shows=lambda _: False)
    events = [stamped.event for stamped in reader.poll()]
    assert [event for event in events if not isinstance(event, Noted)] == [BEGUN, BEGUN]
    assert str(damaged.events) in reader.damage
    assert sum(isinstance(event, Noted) for event in events) == 1


def test_an_inconsistent_plan_is_refused(damaged: RunFolder) -> None:
    plan = json.loads(encode_plan(damaged.read_plan()))
    changes: tuple[dict[str, Any], ...] = (
        {"run": "../x"},
        {"attempt": 0},
        {"name": "\0"},
        {"tasks": [{**plan["tasks"][0], "argv": []}]},
    )
    for change in changes:
        with pytest.raises(msgspec.ValidationError):
            decode_plan(json.dumps(plan | change).encode())
    for data in (b"", b"\xff", b"[" * 100_000, b'{"run":' * 50_000, b"NaN", b"null"):
        with pytest.raises(msgspec.ValidationError):
            decode_plan(data)
    damaged.plan.write_text(json.dumps({**plan, "run": "another"}))
    with pytest.raises(OrchestrateError) as refused:
        damaged.read_plan()
    assert "it is the plan of run 'another'" in refused.value.why


def test_run_ids_sort_by_age_in_any_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    try:
        for number, zone in enumerate(("EAST-14", "UTC0", "WEST+10")):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            ids.append(new_run_id(1e9 + 10 * number))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert ids == sorted(ids)


def test_a_new_run_is_the_newest_after_the_clock_was_set_back() -> None:
    clock = [1.8e9, 1.7e9, 1.7e9, 1.6e9, 1.8e9 + 60]
    ids: list[RunId] = []
    for now in clock:
        ids.append(next_run_id(now))
        made(str(ids[-1]))
        assert find(None) == RunFolder(runs_root(), ids[-1])
    assert ids == sorted(ids)
    assert ids[-1].startswith(new_run_id(clock[-1])[:15])  # it is not ahead for longer than necessary
    made("zz")  # without a time in its name
    assert next_run_id(clock[-1]) > ids[-1][:15]
