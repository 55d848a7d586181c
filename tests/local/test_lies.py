"""An agent that sends false messages causes one error and the end of its session, but no harm."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator import wire
from orchestrator.connectors import Connectors
from orchestrator.errors import HostError
from orchestrator.fleet import Fleet, Lost, Session, TaskNews
from orchestrator.timings import Timings
from tests.local.liar import liar
from tests.unit.plans import host

NEWS = '"stream": ask["id"], "attempt": "1", "task": "worker/0"'
FOLLOWED = f"greet(); ask = await_question('follow'); good(ask, {{'missing': []}}); say({{{NEWS}, "

AT_ONCE = {
    "hello_without_fields": ("raw(frames.MARKER); say({'hello': {}})", "its hello"),
    "a_state_folder_that_is_none": ("greet(state='relative')", "its hello"),
    "no_hello": ("raw(frames.MARKER); say({'beat': 1})", "not a hello"),
    "a_reply_first": ("raw(frames.MARKER); say({'id': 1, 'ok': True, 'result': {}})", "not open"),
}
OF_TASKS = {
    "a_task_of_no_name": ("'kind': 'state', 'state': {'state': 'running'}, 'task': '../x'}", "task's state"),
    "a_path_for_an_attempt": ("'kind': 'report', 'offset': 0, 'attempt': '../1'}", "task's report"),
    "a_payload_of_a_state": ("'kind': 'state', 'state': {'state': 'running'}}, b'x'", "a payload"),
}


CRUMBS = "greet(); raw(struct.pack('>II', 2**20, 0))\nwhile True: raw(b' '); time.sleep(0.02)"


@pytest.fixture
def failed() -> Iterator[list[object]]:
    """Threads that died of an exception; the test fails if there are any."""
    dead: list[object] = []
    before, threading.excepthook = threading.excepthook, dead.append
    yield dead
    threading.excepthook = before
    assert dead == []


@pytest.fixture
def sink() -> queue.SimpleQueue[TaskNews | Lost]:
    return queue.SimpleQueue()


@pytest.fixture
def session(
    tmp_path: Path, sink: queue.SimpleQueue[TaskNews | Lost], failed: list[object]
) -> Iterator[Callable[[str], Session]]:
    del failed
    opened: list[Session] = []

    def make(lie: str) -> Session:
        one = replace(host("gpu-1"), ssh="local", agent_python=liar(tmp_path, lie))
        made = Session(one, Connectors().connect(one, 5.0), sink.put)
        opened.append(made)
        return made

    yield make
    for one in opened:
        one.close()


def check_error(error: HostError, why: str) -> None:
    """Check for a single error that names the problem, short and printable."""
    assert (error.host, error.kind, error.what) == ("gpu-1", "protocol", "does not speak our protocol")
    assert why in error.why
    assert error.why.isprintable()
    assert len(error.why) <= 300


@pytest.mark.parametrize(("lie", "why"), AT_ONCE.values(), ids=AT_ONCE)
def test_a_false_hello(session: Callable[[str], Session], lie: str, why: str) -> None:
    one = session(lie)

    def converse() -> None:
        one.start(10.0)
        one.request(wire.Ping(), timeout=10.0)

    with pytest.raises(HostError) as caught:
        converse()
    check_error(caught.value, why)
    assert not one.alive


@pytest.mark.parametrize(("lie", "why"), OF_TASKS.values(), ids=OF_TASKS)
def test_a_false_report_about_a_task(
    session: Callable[[str], Session], sink: queue.SimpleQueue[TaskNews | Lost], lie: str, why: str
) -> None:
    one = session(f"{FOLLOWED}{lie})")
    one.start(10.0)
    one.request(wire.Follow(run="r", attempt="1", tasks=[wire.From("worker/0", 0, 0)]))
    lost = sink.get(timeout=10.0)
    assert isinstance(lost, Lost)
    check_error(lost.error, why)


def test_an_unfinished_frame_is_not_a_sign_of_life(
    tmp_path: Path, sink: queue.SimpleQueue[TaskNews | Lost]
) -> None:
    one = replace(host("gpu-1"), ssh="local", agent_python=liar(tmp_path, CRUMBS))
    with contextlib.closing(Fleet(Connectors(), sink.put, timings=Timings(silence=1.0))) as fleet:
        assert fleet.connect([one]) == {}
        lost = sink.get(timeout=10.0)
    assert isinstance(lost, Lost)
    assert (lost.error.kind, lost.error.why) == ("lost", "no message for 1 s")


def test_an_abandoned_request_may_still_be_answered_once(session: Callable[[str], Session]) -> None:
    one = session(
        "greet(); ask = await_question('ping'); await_question('unlisten'); good(ask, {'time_ns': 1})\n"
        "for ask in asked: good(ask, {'time_ns': 2})"
    )
    one.start(10.0)
    given_up = one.submit(wire.Ping())
    one.cancel()
    assert given_up.exception(5.0) is not None
    one.submit(wire.Unlisten())
    assert one.request(wire.Ping(), timeout=10.0).time_ns == 2


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("text(json.dumps({'id': ask['id'], 'ok': True, 'result': 'x' * 2**20}).encode())", "a header of"),
        ("say({'id': ask['id'], 'ok': True, 'result': {}}, b'x')", "at most 0"),
    ],
)
def test_a_reply_is_no_larger_than_its_request_allows(
    session: Callable[[str], Session], lie: str, why: str
) -> None:
    one = session(f"greet(); ask = await_question('work_make'); {lie}")
    one.start(10.0)
    with pytest.raises(HostError) as caught:
        one.request(wire.WorkMake(workdir="/w", run="r", digest="ab", also=[]))
    check_error(caught.value, why)


def test_an_unread_flood_waits_on_its_node(
    session: Callable[[str], Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's unprocessed data stays below a bound, and a reply still gets through."""
    from orchestrator.fleet import session as backlog
    from orchestrator.phases.loop import Loop

    monkeypatch.setattr(backlog, "ROOM", 1 << 20)
    one = session(
        f"greet(); ask = await_question('follow'); good(ask, {{'missing': []}})\n"
        f"for n in range(400): say({{{NEWS}, 'kind': 'report', 'offset': n * 65536}}, b'x' * 65536)\n"
        "for ask in asked: good(ask, {'time_ns': 7})"
    )
    loop = Loop()
    one._sink = loop.put
    one.start(10.0)
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
    assert one.request(wire.Ping()).time_ns == 7
