"""Who is missing when a cluster does not form, and when a task that served can go."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker_entry import watch
from worker_entry.failure import ExpectedError
from worker_entry.presence import GONE_AFTER, Presence
from worker_entry.watch import OPEN, complaint, look, look_at_all

WATCHER = [sys.executable, "-I", "-S", watch.__file__]


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def refusing() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_what_is_found_at_an_address(listening: str, refusing: str) -> None:
    assert look(listening) == OPEN
    assert look(refusing).startswith("nothing listens there")
    assert look("no-such-host.invalid:1") == "no-such-host.invalid does not resolve"


def test_all_are_asked_at_once(listening: str, refusing: str) -> None:
    found = look_at_all({"worker/1": listening, "worker/2": refusing})
    assert found["worker/1"] == OPEN
    assert found["worker/2"] != OPEN


def test_the_missing_are_named_with_the_reason() -> None:
    what, text = complaint(120, {"worker/1": "a:1", "ps/0": "b:2"}, {"worker/1": OPEN, "ps/0": "refused"})
    assert what == "ps/0 (b:2) did not come within 120 s"
    assert text.splitlines() == [
        "error: ps/0 (b:2) did not come within 120 s",
        "  why: refused",
        "  try: look at that task's own output; --start-timeout waits longer",
    ]


def test_of_many_missing_five_are_named() -> None:
    peers = {f"worker/{i}": f"h{i}:1" for i in range(63)}
    what, _ = complaint(9, peers, dict.fromkeys(peers, "refused"))
    assert "worker/4 (h4:1) and 58 more did not come" in what


def test_when_all_answer_they_disagree() -> None:
    what, text = complaint(9, {"worker/1": "a:1"}, {"worker/1": OPEN})
    assert "every task's port answers" in what
    assert "the same TF_CONFIG cluster" in text


def test_the_watcher_names_who_is_missing_and_reports_it(tmp_path: Path, refusing: str) -> None:
    report = tmp_path / "report.jsonl"
    order = {"seconds": 0.3, "peers": {"worker/1": refusing}, "report": str(report)}
    with subprocess.Popen(WATCHER, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdin is not None
        assert watcher.stderr is not None
        watcher.stdin.write(json.dumps(order) + "\n")
        watcher.stdin.flush()
        said = watcher.stderr.read().splitlines()
    assert said[0] == "waiting up to 0.3 s for worker/1"
    assert said[1] == f"error: worker/1 ({refusing}) did not come within 0.3 s"
    assert json.loads(report.read_text())["message"] == said[1].removeprefix("error: ")


def test_the_watcher_ends_in_silence_when_the_cluster_has_formed(refusing: str) -> None:
    order = json.dumps({"seconds": 60, "peers": {"worker/1": refusing}, "report": None}) + "\n"
    done = subprocess.run(WATCHER, input=order, text=True, capture_output=True, timeout=20, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def looks(*found: str) -> Presence:
    answers = iter(found)
    times = iter(range(1000))
    return Presence("chief/0", lambda: next(answers), 5, lambda: next(times))


def test_a_task_is_gone_after_it_was_there_and_missed_several_times() -> None:
    presence = looks("refused", "refused", OPEN, "refused", OPEN, *["refused"] * GONE_AFTER)
    answers = [presence.gone() for _ in range(5 + GONE_AFTER)]
    assert answers == [False] * (4 + GONE_AFTER) + [True]


def test_a_task_that_never_comes_is_named() -> None:
    presence = looks(*["refused"] * 6)
    assert not any(presence.gone() for _ in range(5))
    with pytest.raises(ExpectedError, match="chief/0 did not come"):
        presence.gone()
