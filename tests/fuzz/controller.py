"""Mutated answers of agents through the controller's whole way of reading them."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.fleet import Lost, Session, TaskNews
from orchestrator.fleet import session as sessions
from orchestrator.fleet.session import _Open
from orchestrator.model import TaskId
from orchestrator.node.serve import frames
from orchestrator.run.records import TaskPlace, final
from tests.fuzz.mutate import damaged, frame, mutated
from tests.node.test_wire_contract import Said
from tests.unit.plans import host


class _Tape:
    """A connection over which mutated bytes come."""

    def __init__(self, data: bytes, dice: random.Random) -> None:
        self._chunks = self._cut(data, dice)

    @staticmethod
    def _cut(data: bytes, dice: random.Random) -> Iterator[bytes]:
        while data:
            size = dice.choice((1, 7, 64, 1000, len(data)))
            yield data[:size]
            data = data[size:]

    def recv(self, limit: int) -> bytes:
        del limit
        return next(self._chunks, b"")

    def stderr_tail(self) -> bytes:
        return b""

    remark = ""

    def explain(self, status: int | None, words: bytes) -> None:
        del status, words

    def wait(self, timeout: float) -> int:
        del timeout
        return 0

    def close(self) -> None:
        pass


def play(dice: random.Random, hello: dict[str, Any], said: Sequence[Said]) -> str:
    """One conversation, mutated; return how it ended. Any error that is not our own is raised."""
    news: list[TaskNews | Lost] = []
    made: Any = Session(host("gpu-1"), _Tape(b"", dice), news.append)  # type: ignore[arg-type]
    session: Session = made
    some = dice.choices(said, k=dice.randrange(1, 4))
    asked = []
    for number, one in enumerate(some, 1):
        future: Future[Any] = Future()
        session._open[number] = _Open(one.request, future)
        asked.append(future)
        if isinstance(one.request, wire.Follow):
            session._followed[number] = frozenset(task.task for task in one.request.tasks)
    session._read(_Tape(_stream(dice, hello, some), dice))  # type: ignore[arg-type]
    if session.alive:
        raise AssertionError("the session goes on behind its end")
    for future in (session._greeted, *asked):
        if not future.done():
            raise AssertionError("somebody waits for ever")
        error = future.exception()
        if error is not None and not isinstance(error, HostError):
            raise error
    for item in news:
        if isinstance(item, TaskNews) and isinstance(item.news, wire.StateNews):
            place = TaskPlace(TaskId.parse(item.news.task), "a", item.news.attempt)
            final(place, item.news.state, session.clock_offset, 0.0)
    end = session.error
    if end is None or not (end.why + end.what).isprintable():
        raise AssertionError(end)
    return end.kind


def _stream(dice: random.Random, hello: dict[str, Any], some: Sequence[Said]) -> bytes:
    pieces: list[tuple[Any, bytes]] = [({"hello": hello}, b"")]
    for number, one in enumerate(some, 1):
        name = "stream" if "stream" in one.header else "id"
        pieces.append(({**one.header, name: number}, one.payload))
    victim = dice.randrange(len(pieces))
    if dice.random() < 0.75:
        header, payload = pieces[victim]
        pieces[victim] = mutated(dice, header), damaged(dice, payload) if dice.random() < 0.3 else payload
        data = b"".join(frame(*piece) for piece in pieces)
    else:
        data = damaged(dice, b"".join(frame(*piece) for piece in pieces))
    return frames.MARKER + data


def strict() -> None:
    """What the reader would only log is raised."""

    sessions.log = Strict("strict")


class Strict(logging.Logger):
    def exception(self, *_: object, **__: object) -> None:
        raise  # noqa: PLE0704 - what is being handled

    def error(self, *_: object, **__: object) -> None:
        pass
