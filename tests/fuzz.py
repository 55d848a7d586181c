"""Feeds mutated replies of a recorded agent, and mutated lines, to the controller's readers."""

import json
import logging
import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from orchestrator import events, wire
from orchestrator.errors import HostError
from orchestrator.events import Stamped
from orchestrator.fleet import Lost, Session, TaskNews
from orchestrator.fleet import session as sessions
from orchestrator.fleet.session import _Open
from orchestrator.model import TaskId
from orchestrator.node.serve import frames
from orchestrator.run.records import TaskPlace, final, reported
from orchestrator.store.folder import decode_plan, encode_plan
from tests.node.lab import Lab
from tests.node.test_wire_contract import STORIES, Asker, Said
from tests.unit.plans import host, make

_NUMBERS = (0, -1, 1, 2**31, 2**53 + 1, 2**63, 10**40, 0.5, -0.0, 1e308, *map(float, ("inf", "-inf", "nan")))
_TEXTS = ("", "x", "\0", "\n", "\x1b[2J", "\u202e", "\ud800", "é" * 300, "../../x", "worker/0", "9" * 5000)
_NESTED: tuple[Any, ...] = ([], {}, [[]], [None], {"": 0}, [[[[[[]]]]]], {"a": {"a": {"a": {}}}})
_ODD: tuple[Any, ...] = (None, True, False, *_NUMBERS, *_TEXTS, "x" * 100_000, *_NESTED)
_NO_JSON = (b"[" * 5000, b'{"a":' * 5000, b"NaN", b"\xff", b"1e999", b'"', b"}")


def mutated(dice: random.Random, header: Any) -> Any:
    """Return JSON with one or a few of its values, names, or lengths changed."""
    made = json.loads(json.dumps(header))
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        made = _changed(dice, made)
    return made


def _changed(dice: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and dice.random() < 0.85:
        name = dice.choice(list(value))
        match dice.randrange(8):
            case 0:
                return {key: one for key, one in value.items() if key != name}
            case 1:
                return {**value, dice.choice(("id", "ok", "hello", "stream", "kind", "x")): dice.choice(_ODD)}
        return {**value, name: _changed(dice, value[name])}
    if isinstance(value, list) and value and dice.random() < 0.7:
        at = dice.randrange(len(value))
        some = dice.choice(([], value[at:] * 2, [_changed(dice, value[at])]))
        return [*value[:at], *some, *value[at + 1 :]]
    return dice.choice(_ODD)


def damaged(dice: random.Random, data: bytes) -> bytes:
    """Return bytes with a few of them flipped, cut out, repeated, or added."""
    made = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5))):
        at, size = dice.randrange(len(made) + 1), dice.choice((1, 2, 8, 100))
        match dice.randrange(6):
            case 0 if made:
                made[at % len(made)] ^= 1 << dice.randrange(8)
            case 1:
                del made[at : at + size]
            case 2:
                made[at:at] = made[at : at + size]
            case 3:
                made[at:at] = dice.randbytes(size)
            case 4:
                del made[at:]
            case _:
                made[at:at] = dice.choice(_NO_JSON)
    return bytes(made)


# --- the controller ---


def conversation(folder: Path) -> tuple[dict[str, Any], list[Said]]:
    """Record a real agent's hello and its replies to every request of the controller."""
    lab = Lab(folder)
    try:
        asker = Asker(lab)
        for story in STORIES:
            story(asker)
        return asker.agent.hello, list(asker.messages)
    finally:
        lab.close()


class Strict(logging.Logger):
    """Raises errors that the reader would only log."""

    def exception(self, *_: object, **__: object) -> None:
        raise  # noqa: PLE0704 - what is being handled

    def error(self, *_: object, **__: object) -> None:
        pass


class _Tape:
    """A connection that delivers mutated bytes."""

    remark = ""

    def __init__(self, data: bytes, dice: random.Random) -> None:
        self._chunks = self._cut(data, dice)

    @staticmethod
    def _cut(data: bytes, dice: random.Random) -> Iterator[bytes]:
        while data:
            size = dice.choice((1, 7, 64, 1000, len(data)))
            yield data[:size]
            data = data[size:]

    def recv(self, _limit: int) -> bytes:
        return next(self._chunks, b"")

    def stderr_tail(self) -> bytes:
        return b""

    def explain(self, _status: int | None, _words: bytes) -> None:
        return None

    def wait(self, _timeout: float) -> int:
        return 0

    def close(self) -> None:
        pass


def play(dice: random.Random, hello: dict[str, Any], messages: Sequence[Said]) -> str:
    """Play one mutated conversation; return how it ended. Raise any error that is not our own."""
    sessions.log = Strict("strict")
    news: list[TaskNews | Lost] = []
    session: Any = Session(host("gpu-1"), _Tape(b"", dice), news.append)  # type: ignore[arg-type]
    some = dice.choices(messages, k=dice.randrange(1, 4))
    asked: list[Future[Any]] = []
    for number, one in enumerate(some, 1):
        asked.append(Future())
        session._open[number] = _Open(one.request, asked[-1])
        if isinstance(one.request, wire.Follow):
            session._followed[number] = frozenset(task.task for task in one.request.tasks)
    session._read(_Tape(_stream(dice, hello, some), dice), 5.0, ())
    assert not session.alive, "the session goes on behind its end"
    for future in (session._greeted, *asked):
        assert future.done(), "somebody waits for ever"
        error = future.exception()
        if error is not None and not isinstance(error, HostError):
            raise error
    for item in news:
        if isinstance(item, TaskNews) and isinstance(item.news, wire.StateNews):
            place = TaskPlace(TaskId.parse(item.news.task), "a", item.news.attempt)
            final(place, item.news.state, session.clock_offset, 0.0)
    end = session.error
    assert (end.why + end.what).isprintable()
    return str(end.kind)


def _stream(dice: random.Random, hello: dict[str, Any], some: Sequence[Said]) -> bytes:
    pieces: list[tuple[Any, bytes]] = [({"hello": hello}, b"")]
    for number, one in enumerate(some, 1):
        pieces.append(({**one.header, "stream" if "stream" in one.header else "id": number}, one.payload))
    whole = dice.random() < 0.75
    if whole:
        victim = dice.randrange(len(pieces))
        header, payload = pieces[victim]
        pieces[victim] = mutated(dice, header), damaged(dice, payload) if dice.random() < 0.3 else payload
    data = b"".join(_frame(*piece) for piece in pieces)
    return frames.MARKER + (data if whole else damaged(dice, data))


def _frame(header: Any, payload: bytes) -> bytes:
    """Encode a frame with any header and of any size."""
    head = json.dumps(header).encode()
    return struct.pack(">II", len(head), len(payload)) + head + payload


# --- lines of files ---


def _kept(line: bytes) -> None:
    event = reported(TaskId.parse("worker/0"), line)
    if event is not None:
        events.decode(events.encode(Stamped(1.0, event)))


_EVENTS = (
    events.TaskExited("worker/0", "a", "1", 0, None, "", 1.0, 2.0, stopped=False),
    events.TaskProgressed("worker/0", 3, 0.5, 2.0),
    events.HostFailed("a", events.Phase.CONNECT, "auth", "what", "why", "try"),
    events.LogGap("worker/0", events.GapPlace.NODE, 7, "why"),
)
_REPORTS = (
    {"kind": "progress", "step": 1, "loss": 0.5, "steps_per_second": 1.0},
    {"kind": "ready", "note": "x"},
    {"kind": "result", "accuracy": 1},
)
_PLAN = json.loads(encode_plan(make(host("a"), host("b", "chief"), command=("train.py",))))
READERS: Mapping[str, tuple[Callable[[bytes], object], tuple[Any, ...]]] = {
    "event": (events.decode, tuple(json.loads(events.encode(Stamped(1.0, one))) for one in _EVENTS)),
    "plan": (decode_plan, (_PLAN,)),
    "report": (_kept, _REPORTS),
}


def read(dice: random.Random, kind: str) -> str:
    """Read one mutated line; return the outcome. Raise any error that its readers do not expect."""
    reader, known = READERS[kind]
    line = dice.choice(known)
    data = json.dumps(mutated(dice, line) if dice.random() < 0.7 else line).encode()
    try:
        reader(damaged(dice, data) if dice.random() < 0.4 else data)
    except ValueError:  # includes msgspec's errors
        return "refused"
    return "read"
