"""Agents that stall, reply late, or flood a session; tests/hostile has what an agent may not send."""

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator import wire
from orchestrator.connectors import Connectors
from orchestrator.fleet import Fleet, Lost, Session, TaskNews
from orchestrator.fleet import session as backlog
from orchestrator.model import Host
from orchestrator.phases.loop import Loop
from orchestrator.timings import Timings
from tests.hostile.middle import Middle
from tests.hostile.row import when
from tests.unit.plans import host

# A frame that never ends, byte by byte.
CRUMBS = "say(header)\nwrite(struct.pack('>II', 2**20, 0))\nwhile True: write(b' '); time.sleep(0.02)"
LATE = when("ping", "if kept.setdefault('late', header) is header:\n    header = None") + when(
    "unlisten", "say({**kept['late'], 'result': {'time_ns': 1}})"
)
FLOOD = (
    "say({**header, 'result': {'missing': []}})\n"
    "news = {'stream': header['id'], 'attempt': '1', 'task': 'worker/0', 'kind': 'report'}\n"
    "for n in range(400): say({**news, 'offset': n * 65536}, b'x' * 65536)\n"
    "header = {'beat': 1}"
)


def lying(folder: Path, lie: str) -> Host:
    middle = Middle(folder / "python", folder / "canary")
    middle.lie(lie)
    return replace(host("gpu-1"), ssh="local", agent_python=str(middle.path), state=str(folder / "state"))


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    with contextlib.ExitStack() as opened:

        def make(lie: str, sink: Callable[[TaskNews | Lost], None] = lambda _: None) -> Session:
            one = lying(tmp_path, lie)
            made = Session(one, Connectors().connect(one, 5.0), sink)
            opened.callback(made.close)
            made.start(10.0)
            return made

        yield make


def test_an_unfinished_frame_is_not_a_sign_of_life(tmp_path: Path) -> None:
    sink = queue.SimpleQueue[TaskNews | Lost]()
    with contextlib.closing(Fleet(Connectors(), sink.put, timings=Timings(silence=1.0))) as fleet:
        assert fleet.connect([lying(tmp_path, when("hello", CRUMBS))]) == {}
        lost = sink.get(timeout=10.0)
    assert isinstance(lost, Lost)
    assert (lost.error.kind, lost.error.why) == ("lost", "no message for 1 s")


def test_an_abandoned_request_may_still_be_answered_once(session: Callable[..., Session]) -> None:
    one = session(LATE)
    given_up = one.submit(wire.Ping())
    one.cancel()
    assert given_up.exception(5.0) is not None
    one.submit(wire.Unlisten())
    assert one.request(wire.Ping(), timeout=10.0).time_ns > 1


def test_an_unread_flood_waits_on_its_node(
    session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's unprocessed data stays below a bound, and a reply still gets through."""
    monkeypatch.setattr(backlog, "ROOM", 1 << 20)
    loop = Loop()
    one = session(when("follow", FLOOD), loop.put)
    one.request(wire.Follow(run="r", attempt="1", tasks=[wire.From("worker/0", 0, 0)]))
    deadline = time.monotonic() + 10.0
    while one.backlog.size <= backlog.ROOM:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert one.backlog.size < backlog.ROOM + 200_000
    offsets: list[int] = []
    while len(offsets) < 400:
        frame = loop.get(timeout=10.0)
        assert isinstance(frame, TaskNews)
        assert isinstance(frame.news, wire.ReportNews)
        offsets.append(frame.news.offset)
    assert offsets == [n * 65536 for n in range(400)]
    assert one.request(wire.Ping()).time_ns > 1
