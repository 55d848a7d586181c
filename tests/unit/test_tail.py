"""What `tail` and `runs` show of runs that are over, and what a launch need not say again."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.args.readings import since
from orchestrator.cli.main import main
from orchestrator.errors import ExitStatus
from orchestrator.eventjson import decode
from orchestrator.events import LogLine, Outcome, RunEnded, Stamped, TaskExited, TaskStarted
from orchestrator.names import RunId
from orchestrator.store import RunFolder, RunReader, runs_root
from orchestrator.store.eventlog import EventLog
from orchestrator.store.mirror import Mirror
from tests.unit import plans

HOSTS = (plans.host("gpu-1"), plans.host("gpu-2"))
FAST, SLOW = "6/6 - 0s - loss: 0.5000 - 9ms/step", "6/6 - 0s - loss: 0.5100 - 12ms/step"


def made(run: str, *, attempts: int = 1, command: tuple[str, ...] = ("train.py",)) -> RunFolder:
    plan = replace(plans.make(*HOSTS), run=run, command=command, notes=(f"note of {run}",), created=1e9)
    folder = RunFolder(runs_root(), RunId(run))
    folder.create(plan)
    log = EventLog(folder)
    for attempt in map(str, range(1, attempts + 1)):
        for task, (host, text) in enumerate(zip(HOSTS, (FAST, SLOW), strict=True)):
            lines = [b"Epoch 1/1\n", text.encode() + b"\n", b"attempt %s\n" % attempt.encode()]
            places = [sum(map(len, lines[:number])) for number in range(3)]
            began = int(attempt) * 100
            times = [(place, (began + 10 * number) * 10**9) for number, place in enumerate(places)]
            Mirror(folder, attempt, f"worker-{task}").add_log(0, b"".join(lines), times)
            log(Stamped(began - 1, TaskStarted(f"worker/{task}", host.name, attempt, 1)))
        for task, host in enumerate(HOSTS):
            end = TaskExited(f"worker/{task}", host.name, attempt, 0, None, "", 1.0, 2.0, stopped=False)
            log(Stamped(began + 90, end))
    log(Stamped(1000.0, RunEnded(run, Outcome.SUCCEEDED, 0, 52.0, "", "", (), "")))
    return folder


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_tail_shows_what_it_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    made("20261121-010203-abcd", attempts=2)

    def tail(*words: str) -> list[str]:
        assert main(["tail", "abcd", *words]) == ExitStatus.OK
        return [line.partition("| ")[2] for line in capfd.readouterr().out.splitlines()]

    whole = ["Epoch 1/1", "Epoch 1/1", FAST, SLOW]
    assert tail() == [*whole, "attempt 1", "attempt 1", *whole, "attempt 2", "attempt 2"]
    assert tail("--task", "worker/1", "-n", "1") == ["attempt 1", "attempt 2"]
    assert tail("--since", "1970-01-01T00:03:30+00:00") == [FAST, SLOW, "attempt 2", "attempt 2"]
    assert tail("-n", "1", "--raw") == ["attempt 1", "attempt 1", "attempt 2", "attempt 2"]
    folded = ["Epoch 1/1", FAST, SLOW]  # losses that differ are two lines
    assert tail("--fold", "similar") == [*folded, "attempt 1", *folded, "attempt 2"]


def test_the_lines_of_json_are_chosen_and_never_folded(capfd: pytest.CaptureFixture[str]) -> None:
    made("20261121-010203-abcd")
    words = ["tail", "--json", "--fold", "similar", "-n", "3", "--timestamps"]
    assert main(words) == ExitStatus.OK
    events = [decode(line.encode()).event for line in capfd.readouterr().out.splitlines()]
    lines = [line for line in events if isinstance(line, LogLine)]
    assert [(line.task, line.text, line.sent) for line in lines[:2]] == [
        ("worker/0", "Epoch 1/1", 100.0),
        ("worker/1", "Epoch 1/1", 100.0),
    ]
    assert isinstance(events[-1], RunEnded)


@pytest.mark.parametrize("words", [[], ["--json"], ["--fold", "similar"]])
def test_a_copy_that_finds_no_room_is_no_success(
    words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made("20261121-010203-abcd")
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["tail", *words]) == ExitStatus.USAGE
    assert "could not be written: No space left on device" in capfd.readouterr().err


def test_a_line_with_its_time(capfd: pytest.CaptureFixture[str]) -> None:
    made("20261121-010203-abcd")
    assert main(["tail", "--timestamps", "-n", "1"]) == ExitStatus.OK
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert re.fullmatch(r"\d\d:\d\d:00\.000 worker/\d gpu-\d \| attempt 1", line)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--since", "teatime"], "'teatime' is not a time (a time is written 10m, 2h or 2026-11-22T14:30)"),
        (["--raw", "--fold", "similar"], "not allowed with argument --raw"),
        (["--fold", "some"], "invalid choice: 'some' (choose from 'similar', 'none')"),
    ],
)
def test_what_cannot_be_asked_for(words: list[str], what: str, capfd: pytest.CaptureFixture[str]) -> None:
    made("20261121-010203-abcd")
    assert main(["tail", "abcd", *words]) == ExitStatus.USAGE
    assert what in capfd.readouterr().err


def test_a_moment_that_is_so_long_ago() -> None:
    assert since("10m") == pytest.approx(since("0h") - 600, abs=5)
    assert since("2026-11-22T14:30+00:00") == 1795357800


def test_runs_are_counted_from_the_newest(capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        made(f"20261121-01020{number}-abc{number}")
    assert main(["runs", "-n", "2"]) == ExitStatus.OK
    head, *rows = capfd.readouterr().out.splitlines()
    assert head.split() == ["run", "state", "took", "tasks", "hosts", "command"]
    assert [row.split()[0] for row in rows] == ["20261121-010202-abc2", "20261121-010201-abc1"]
    assert rows[0].endswith("succeeded  52 s  2      gpu-[1-2]  train.py")


def test_what_was_before_is_no_news_to_who_skips_it() -> None:
    folder = made("20261121-010203-abcd")
    reader = RunReader(folder)
    reader.skip(4)
    assert [type(stamped.event) for stamped in reader.poll()] == [RunEnded]
