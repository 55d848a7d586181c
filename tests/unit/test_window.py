"""Requests ahead of their answers: how many, and whose answer is waited for."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.sync.conversation import Conversation, RequestWindow


class Line:
    """Takes requests, and answers each when it is waited for."""

    def __init__(self, bad: int = -1) -> None:
        self.asked: list[str] = []
        self.answered: list[str] = []
        self.most = 0
        self._bad = bad

    def submit(self, request: wire.StoreDrop, _payload: bytes = b"") -> Future[Any]:
        self.asked.append(request.path)
        self.most = max(self.most, len(self.asked) - len(self.answered))
        future: Future[Any] = Future()
        future.set_result(request.path)
        return future

    def wait(self, future: Future[Any], op: str, timeout: float) -> Any:
        assert (op, timeout) == ("store_drop", 600.0)
        self.answered.append(future.result())
        if len(self.answered) - 1 == self._bad:
            raise HostError("gpu-1", "is lost", kind="lost")
        return future.result()


def window(line: Line, size: int) -> RequestWindow[wire.Nothing]:
    return RequestWindow(cast("Conversation", line), wire.StoreDrop, size)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("number", [0, 1, 3, 4, 9])
def test_no_more_are_on_their_way_than_the_window_holds(size: int, number: int) -> None:
    line, names = Line(), [str(place) for place in range(number)]
    ahead = window(line, size)
    for name in names:
        ahead.submit(wire.StoreDrop(path=name))
    assert line.answered == names[: max(0, number - size)]
    assert ahead.full == (number >= size)
    ahead.finish()
    assert line.asked == line.answered == names
    assert line.most == min(size, number)


def test_the_error_of_an_answer_comes_before_the_next_request() -> None:
    line = Line(bad=0)
    ahead = window(line, 2)
    ahead.submit(wire.StoreDrop(path="0"))
    ahead.submit(wire.StoreDrop(path="1"))
    with pytest.raises(HostError):
        ahead.submit(wire.StoreDrop(path="2"))
    assert line.asked == ["0", "1"]


def test_a_request_knows_its_reply_by_its_type() -> None:
    assert wire.StoreDrop.REPLY is wire.Nothing
    assert wire.States.REPLY is wire.Runs
