"""Work in forked children: its answer, its errors, its time."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.node.serve.agent import Jobs
from orchestrator.node.serve.loop import Loop
from tests.node.harness import until
from tests.node.lab import gone


def run(work: Callable[[], Any], seconds: float = 20.0) -> tuple[dict[str, Any], bytes]:
    """What `work` answers from its child."""
    loop = Loop()
    answers: list[Any] = []
    Jobs(loop).run("work", work, answers.append, seconds=seconds)
    deadline = time.monotonic() + 20.0
    loop.after(20.0, lambda: None)
    while not answers and time.monotonic() < deadline:
        loop.step()
    (answer,) = answers
    return answer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("error", "kind", "what"),
    [
        (OSError(28, "No space left on device", "/x"), "machine", "No space left on device"),
        (ValueError("odd"), "bug", "the agent failed: ValueError('odd')"),
    ],
)
def test_an_exception_is_an_answer(error: Exception, kind: str, what: str) -> None:
    def work() -> Any:
        raise error

    header, _ = run(work)
    assert not header["ok"]
    assert (header["error"]["kind"], header["error"]["what"]) == (kind, what)


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Any) -> None:
    pids = tmp_path / "pids"

    def work() -> Any:
        deaf = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"])
        pids.write_text(f"{os.getpid()} {deaf.pid}")
        deaf.wait()
        return {}, b""

    header, _ = run(work, seconds=3.0)  # in which it has begun
    assert header["error"]["kind"] == "timeout"
    assert header["error"]["what"] == "`work` did not end within 3 s"
    until(lambda: all(gone(int(pid)) for pid in pids.read_text().split()), what="the end of the work")
