"""What the controller makes of an agent that lies: one error, an ended session, and no harm."""

from __future__ import annotations

import queue
import resource
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import wire
from orchestrator.connectors import connectors
from orchestrator.errors import HostError
from orchestrator.fleet import Fleet, Lost, Session, TaskNews
from orchestrator.fleet import session as sessions
from tests.local.liar import liar
from tests.unit.plans import host

NEWS = '"stream": ask["id"], "attempt": "1", "task": "worker/0"'
FOLLOWED = f"greet(); ask = await_question('follow'); good(ask, {{'missing': []}}); say({{{NEWS}, "

AT_ONCE = {
    "hello_twice_in_one": ("raw(frames.MARKER); say({'hello': HELLO}); say({'hello': HELLO})", "hello twice"),
    "hello_without_fields": ("raw(frames.MARKER); say({'hello': {}})", "its hello"),
    "hello_is_a_list": ("raw(frames.MARKER); say({'hello': []})", "its hello"),
    "hello_of_other_types": ("greet(time_ns='now')", "its hello"),
    "hello_from_far_away": ("greet(time_ns=10**30)", "its hello"),
    "hello_of_another_protocol": ("greet(protocol=2)", "version 2 of our protocol"),
    "a_state_folder_that_is_none": ("greet(state='relative')", "its hello"),
    "no_hello": ("raw(frames.MARKER); say({'beat': 1})", "not a hello"),
    "a_reply_first": ("raw(frames.MARKER); say({'id': 1, 'ok': True, 'result': {}})", "not open"),
    "no_json": ("raw(frames.MARKER); text(b'hello')", "not JSON"),
    "a_list": ("raw(frames.MARKER); text(b'[1]')", "must be an object"),
    "a_number": ("raw(frames.MARKER); text(b'1')", "must be an object"),
    "not_a_number": ("raw(frames.MARKER); text(b'{\"hello\": NaN}')", "NaN is not a number"),
    "endless": ("raw(frames.MARKER); text(b'{\"hello\": ' + b'9' * 9999 + b'}')", "not JSON"),
    "no_utf8": ('raw(frames.MARKER); text(b\'{"hello": "\\xff"}\')', "not JSON"),
    "deep": ("raw(frames.MARKER); text(b'[' * 500_000)", "nested too deep"),
    "deep_objects": ("raw(frames.MARKER); text(b'{\"a\":' * 200_000)", "nested too deep"),
    "an_empty_header": ("raw(frames.MARKER); text(b'')", "header of 0 bytes"),
    "a_huge_header": ("raw(frames.MARKER); raw(b'\\xff' * 8)", "header of 4,294,967,295 bytes"),
    "a_huge_payload": ("raw(frames.MARKER); raw(struct.pack('>II', 2, 2**31))", "payload of 2,147,483,648"),
}
ANSWERS = {
    "nothing": ("{'id': ask['id']}", "neither good nor bad"),
    "perhaps": ("{'id': ask['id'], 'ok': 1}", "neither good nor bad"),
    "no_result": ("{'id': ask['id'], 'ok': True}", "the answer to `ping`"),
    "a_list": ("{'id': ask['id'], 'ok': True, 'result': []}", "the answer to `ping`"),
    "another_type": ("{'id': ask['id'], 'ok': True, 'result': {'time_ns': 'x'}}", "the answer to `ping`"),
    "below_zero": ("{'id': ask['id'], 'ok': True, 'result': {'time_ns': -1}}", "the answer to `ping`"),
    "a_float": ("{'id': ask['id'], 'ok': True, 'result': {'time_ns': 1.5}}", "the answer to `ping`"),
    "to_nobody": ("{'id': 99, 'ok': True, 'result': {}}", "request 99, which is not open"),
    "to_true": ("{'id': True, 'ok': True, 'result': {}}", "request True, which is not open"),
    "to_a_text": ("{'id': 'x' * 10**5, 'ok': True, 'result': {}}", "request 'xxx"),
    "to_a_list": ("{'id': [1], 'ok': True, 'result': {}}", "request [1], which"),
    "no_error": ("{'id': ask['id'], 'ok': False}", "the error in answer to `ping`"),
    "an_odd_error": ("{'id': ask['id'], 'ok': False, 'error': {'what': 7}}", "the error in answer"),
    "an_error_of_lists": ("{'id': ask['id'], 'ok': False, 'error': ['what']}", "the error in answer"),
    "hello_again": ("{'hello': HELLO}", "hello twice"),
    "news_of_nobody": (
        "{'stream': 1, 'kind': 'log', 'attempt': '1', 'task': 'worker/0', 'offset': 0, 'times': []}",
        "not followed",
    ),
    "a_frame_of_nothing": ("{}", "neither an answer nor news"),
    "unprintable": ("{'id': '\\x1b[2J\\u202e\\n' * 500, 'ok': True}", "request"),
}
OF_TASKS = {
    "no_kind": ("}", "no known kind"),
    "an_odd_kind": ("'kind': ['log']}", "no known kind"),
    "a_negative_offset": ("'kind': 'log', 'offset': -1, 'times': []}", "task's log"),
    "a_huge_offset": ("'kind': 'report', 'offset': 2**70}", "task's report"),
    "no_times": ("'kind': 'log', 'offset': 0}", "task's log"),
    "odd_times": ("'kind': 'log', 'offset': 0, 'times': [[1, 2, 3]]}", "task's log"),
    "no_state": ("'kind': 'state'}", "task's state"),
    "a_state_of_no_kind": ("'kind': 'state', 'state': {'state': 'asleep'}}", "task's state"),
    "a_state_of_other_types": ("'kind': 'state', 'state': {'state': 'exited', 'exit_code': '0'}}", "state"),
    "gaps_below_zero": ("'kind': 'state', 'state': {'state': 'running', 'gaps': [{'bytes': -1}]}}", "state"),
    "another_task": ("'kind': 'state', 'state': {'state': 'running'}, 'task': 'worker/1'}", "not followed"),
    "a_task_of_no_name": ("'kind': 'state', 'state': {'state': 'running'}, 'task': '../x'}", "task's state"),
    "another_stream": ("'kind': 'state', 'state': {'state': 'running'}, 'stream': 9}", "not followed"),
    "a_path_for_an_attempt": ("'kind': 'report', 'offset': 0, 'attempt': '../1'}", "task's report"),
    "a_payload_of_a_state": ("'kind': 'state', 'state': {'state': 'running'}}, b'x'", "a payload"),
    "a_payload_too_large": ("'kind': 'log', 'offset': 0, 'times': []}, b'x' * 65537", "at most 65,536"),
}


_IMPORTED = "'modules': [], 'gpus': None, 'built': '', 'importing': '', 'ended': '', 'signal': None"
_IMPORTS = wire.Imports(python="python3", setup=None, env={}, modules=["numpy"])
LOOKS: dict[str, tuple[wire.Request[Any], str, str]] = {
    "no_modules": (_IMPORTS, "{}", "the answer to `imports`"),
    "gpus_below_zero": (_IMPORTS, f"{{{_IMPORTED}, 'gpus': -1}}", "the answer to `imports`"),
    "what_nobody_asked_for": (
        _IMPORTS,
        f"{{{_IMPORTED}, 'modules': [{{'name': 'os', 'version': None, 'error': ''}}]}}",
        "imported what nobody asked for",
    ),
}


@pytest.fixture
def failed() -> Iterator[list[object]]:
    """The threads that died of an exception; there are none."""
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
        made = Session(one, connectors().connect(one, 5.0), sink.put)
        opened.append(made)
        return made

    yield make
    for one in opened:
        one.close()


def told(error: HostError, why: str) -> None:
    """It is the one error, with what was wrong, short and printable."""
    assert (error.host, error.kind, error.what) == ("gpu-1", "protocol", "does not speak our protocol")
    assert why in error.why
    assert error.why.isprintable()
    assert len(error.why) <= 300


@pytest.mark.parametrize(("lie", "why"), AT_ONCE.values(), ids=AT_ONCE)
def test_a_lie_instead_of_a_hello(session: Callable[[str], Session], lie: str, why: str) -> None:
    one = session(lie)

    def converse() -> None:
        one.start(10.0)
        one.request(wire.Ping(), timeout=10.0)

    with pytest.raises(HostError) as caught:
        converse()
    told(caught.value, why)
    assert not one.alive


@pytest.mark.parametrize(("lie", "why"), ANSWERS.values(), ids=ANSWERS)
def test_a_lie_instead_of_an_answer(
    session: Callable[[str], Session], sink: queue.SimpleQueue[TaskNews | Lost], lie: str, why: str
) -> None:
    one = session(f"greet(); ask = await_question('ping'); say({lie})")
    one.start(10.0)
    waiting = one.submit(wire.Beats(every=5.0)), one.submit(wire.Ping()), one.submit(wire.States(run=None))
    for future in waiting[1:]:
        error = future.exception(10.0)
        assert isinstance(error, HostError)
        told(error, why)
    lost = sink.get(timeout=10.0)
    assert isinstance(lost, Lost)
    told(lost.error, why)
    with pytest.raises(HostError, match="does not speak"):
        one.request(wire.Ping())
    assert sink.empty()


@pytest.mark.parametrize(("lie", "why"), OF_TASKS.values(), ids=OF_TASKS)
def test_a_lie_about_a_task(
    session: Callable[[str], Session], sink: queue.SimpleQueue[TaskNews | Lost], lie: str, why: str
) -> None:
    one = session(f"{FOLLOWED}{lie})")
    one.start(10.0)
    one.request(wire.Follow(run="r", attempt="1", tasks=[wire.From("worker/0", 0, 0)]))
    lost = sink.get(timeout=10.0)
    assert isinstance(lost, Lost)
    told(lost.error, why)


# What a task uses, and what is wrong with it.
USED = "'attempt': '1', 'task': 'worker/0', 'processes': 1, 'cpu': 1.0, 'memory': 1"
VITALS = {
    "memory_below_zero": (f"{{{USED}, 'memory': -1}}", "the answer to `vitals`"),
    "endless_cpu": (f"{{{USED}, 'cpu': 1e300}}", "the answer to `vitals`"),
    "busier_than_busy": (f"{{{USED}, 'gpu_busy': 101}}", "the answer to `vitals`"),
    "another_attempt": (f"{{{USED}, 'attempt': '2'}}", "another attempt"),
    "a_path_for_a_task": (f"{{{USED}, 'task': '../worker/0'}}", "the answer to `vitals`"),
}


@pytest.mark.parametrize(("lie", "why"), VITALS.values(), ids=VITALS)
def test_a_lie_about_what_a_task_uses(session: Callable[[str], Session], lie: str, why: str) -> None:
    one = session(f"greet(); ask = await_question('vitals'); good(ask, {{'tasks': [{lie}]}})")
    one.start(10.0)
    with pytest.raises(HostError) as caught:
        one.request(wire.VitalsAsk(run="r", attempt="1"), timeout=10.0)
    told(caught.value, why)


FINGERPRINTS: dict[str, dict[str, object]] = {
    "nothing": {},
    "a_path": {"digest": "../../../etc/passwd"},
    "a_number": {"digest": 7},
    "without_end": {"digest": "0" * 100_000},
}


@pytest.mark.parametrize("lie", FINGERPRINTS.values(), ids=FINGERPRINTS)
def test_a_lie_about_what_a_validation_depends_on(
    session: Callable[[str], Session], lie: dict[str, object]
) -> None:
    one = session(f"greet(); ask = await_question('fingerprint'); good(ask, {lie!r})")
    one.start(10.0)
    with pytest.raises(HostError) as caught:
        one.request(wire.Fingerprint(python="python3", setup=None, env={}), timeout=10.0)
    told(caught.value, "the answer to `fingerprint`")


def test_an_answer_twice(session: Callable[[str], Session]) -> None:
    one = session(
        "greet(); ask = await_question('ping'); good(ask, {'time_ns': 1}); good(ask, {'time_ns': 1})"
    )
    one.start(10.0)
    assert one.request(wire.Ping()).time_ns == 1
    with pytest.raises(HostError) as caught:
        one.request(wire.Ping(), timeout=10.0)
    told(caught.value, "which is not open")


def test_what_was_given_up_may_still_be_answered_once(session: Callable[[str], Session]) -> None:
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
        ("good(ask, {'work': '/w', 'missing': ['../../etc'], 'made': True})", "the answer to `work_make`"),
    ],
)
def test_an_answer_is_no_larger_than_its_question_allows(
    session: Callable[[str], Session], lie: str, why: str
) -> None:
    one = session(f"greet(); ask = await_question('work_make'); {lie}")
    one.start(10.0)
    with pytest.raises(HostError) as caught:
        one.request(wire.WorkMake(workdir="/w", run="r", digest="ab", also=[]))
    told(caught.value, why)


def test_words_of_an_error_are_shown_printable_and_short(session: Callable[[str], Session]) -> None:
    error = (
        "{'what': '\\x1b]0;x\\x07\\u202e' * 10**4, 'why': 'a\\nb\\x00' * 10**4, 'hint': '', 'kind': 'lost'}"
    )
    one = session(
        f"greet(); ask = await_question('ping'); say({{'id': ask['id'], 'ok': False, 'error': {error}}})"
    )
    one.start(10.0)
    with pytest.raises(HostError) as caught:
        one.request(wire.Ping())
    found = caught.value
    assert found.kind == "agent"  # a node does not choose what we do
    assert found.what.isprintable()
    assert found.why.replace("\n", "").isprintable()
    assert len(found.what) + len(found.why) < 50_000
    assert one.alive


def test_noise_without_end_is_no_agent_and_bounded(session: Callable[[str], Session]) -> None:
    one = session("while True: raw(b'welcome ' * 100_000)")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HostError) as caught:
        one.start(2.0)
    assert caught.value.kind == "no-agent"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64_000  # kB


@pytest.mark.parametrize("part", ["struct.pack('>II', 900_000, 0) + b'{' * 10", "b'\\0\\0'"])
def test_silence_in_the_middle_of_a_frame_is_given_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: list[object], part: str
) -> None:
    """The node is not silent as a whole: its frame grows by a byte now and then, without an end."""
    del failed
    monkeypatch.setattr(sessions, "_FRAME_SECONDS", 1.0)
    monkeypatch.setattr(sessions, "_SLOWEST", 1e9)
    lie = (
        f"greet(); raw({part})\nfor _ in range(600): time.sleep(0.1); raw(b' ' if {len(part)} > 10 else b'')"
    )
    one = replace(host("gpu-1"), ssh="local", agent_python=liar(tmp_path, lie))
    lost: queue.SimpleQueue[TaskNews | Lost] = queue.SimpleQueue()
    fleet = Fleet(connectors(), lost.put)
    try:
        assert fleet.connect([one]) == {}
        came = lost.get(timeout=15.0)
    finally:
        fleet.close()
    assert isinstance(came, Lost)
    told(came.error, "did not end within")


def test_beats_without_end_harm_nobody(session: Callable[[str], Session]) -> None:
    one = session(
        "greet(); ask = await_question('ping')\nfor _ in range(200_000): say({'beat': 1})\n"
        "good(ask, {'time_ns': 1})"
    )
    one.start(10.0)
    assert one.request(wire.Ping(), timeout=120.0).time_ns == 1


def test_a_flood_that_nobody_takes_waits_on_its_node(
    session: Callable[[str], Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the reader has taken and nobody looked at stays below a bound, and an answer gets through."""
    from orchestrator.fleet import session as backlog
    from orchestrator.phases.context import Inbox

    monkeypatch.setattr(backlog, "ROOM", 1 << 20)
    one = session(
        f"greet(); ask = await_question('follow'); good(ask, {{'missing': []}})\n"
        f"for n in range(400): say({{{NEWS}, 'kind': 'report', 'offset': n * 65536}}, b'x' * 65536)\n"
        "for ask in asked: good(ask, {'time_ns': 7})"
    )
    inbox = Inbox()
    one._sink = inbox.put
    one.start(10.0)
    one.request(wire.Follow(run="r", attempt="1", tasks=[wire.From("worker/0", 0, 0)]))
    deadline = time.monotonic() + 10.0
    while one.backlog.size <= backlog.ROOM:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert one.backlog.size < backlog.ROOM + 200_000
    offsets: list[int] = []
    while len(offsets) < 400:
        frame = inbox.get(timeout=10.0)
        assert isinstance(frame, TaskNews)
        assert isinstance(frame.news, wire.ReportNews)
        offsets.append(frame.news.offset)
    assert offsets == [n * 65536 for n in range(400)]
    assert one.request(wire.Ping()).time_ns == 7


def test_who_sends_more_than_fits_is_lost(
    session: Callable[[str], Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers nothing, so it has to be listened to; its bytes wait on its disk."""
    from orchestrator.fleet import session as backlog
    from orchestrator.phases.context import Inbox

    monkeypatch.setattr(backlog, "MOST", 2 << 20)
    one = session(
        f"greet(); ask = await_question('follow'); good(ask, {{'missing': []}})\n"
        f"for n in range(400): say({{{NEWS}, 'kind': 'report', 'offset': n * 65536}}, b'x' * 65536)"
    )
    inbox = Inbox()
    one._sink = inbox.put
    one.start(10.0)
    one.request(wire.Follow(run="r", attempt="1", tasks=[wire.From("worker/0", 0, 0)]))
    with pytest.raises(HostError) as caught:
        one.request(wire.Ping(), timeout=20.0)
    assert caught.value.kind == "lost"


@pytest.mark.parametrize("name", LOOKS)
def test_a_lie_about_a_look_is_one_error(session: Callable[[str], Session], name: str) -> None:
    request, result, why = LOOKS[name]
    one = session(f"greet(); good(await_question({request.OP!r}), {result})")
    one.start()
    with pytest.raises(HostError) as caught:
        one.request(request)
    told(caught.value, why)
