"""How a keeper handles the frames of a task and of a local validation, and what it retries."""

import errno
import json
import math
import queue
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import pytest
from msgspec.structs import replace

from orchestrator import events as ev
from orchestrator import wire
from orchestrator.clock import SYSTEM
from orchestrator.connectors import Connectors
from orchestrator.errors import HostError, Trouble
from orchestrator.fleet import Answers, Fleet, TaskNews
from orchestrator.fleet.session import Backlog
from orchestrator.model import LOCAL, Host, TaskId
from orchestrator.names import RunId
from orchestrator.phases import recovery
from orchestrator.phases.attempt import Attempt, Gauge
from orchestrator.phases.connect import lease
from orchestrator.phases.context import PhaseFailed, Run, StopFlag, failure
from orchestrator.phases.follow import Follower
from orchestrator.phases.hang import Watch
from orchestrator.phases.loop import Loop, Reconnected
from orchestrator.phases.validate import _failed
from orchestrator.run import fitlines
from orchestrator.run.hang import Life
from orchestrator.run.records import number
from orchestrator.store import RunFolder, mirror
from orchestrator.store.bus import Bus
from orchestrator.store.points import PointFile, PointReader
from orchestrator.transport import Link
from tests.golden import matches_golden
from tests.unit.plans import host, make

SESSION: Any = SimpleNamespace(host=host("a"), clock_offset=0.0, backlog=Backlog(), dropped=set())


@pytest.fixture
def told() -> list[ev.Event]:
    return []


@pytest.fixture
def follower(tmp_path: Path, told: list[ev.Event], monkeypatch: pytest.MonkeyPatch) -> Follower:
    monkeypatch.setattr(recovery, "lose", lambda *_, **__: None)
    fleet = Fleet(cast("Any", None), lambda _: None)
    fleet.sessions["a"] = SESSION
    folder = RunFolder(tmp_path, RunId("r1"))
    (folder.path / "logs").mkdir(parents=True)
    run = Run(folder, make(host("a")), Bus().emit, fleet, Loop(), "me", None)
    return taken_over(run, told)


def taken_over(run: Run, told: list[ev.Event]) -> Follower:
    """Follow the task as the next keeper does, from the state on disk."""
    run.points = PointFile(run.folder.points, 1)
    return Follower(run, "1", {TaskId.parse("worker/0"): "a"}, told.append)


def give(follower: Follower, kind: str, payload: bytes = b"", **header: Any) -> None:
    header = {"stream": 1, "attempt": "1", "task": "worker/0", "kind": kind, **header}
    follower._run.loop.put(TaskNews("a", SESSION, wire.news(header, payload), payload))
    follower.step(0.0)


def progress(first: int, behind: int) -> bytes:
    return b"".join(
        b'{"kind":"progress","step":%d,"loss":1,"f1":%d}\n' % (n, n) for n in range(first, behind)
    )


def steps(told: list[ev.Event]) -> list[int]:
    return [event.step for event in told if isinstance(event, ev.TaskProgressed)]


def test_a_new_keeper_neither_duplicates_nor_loses_points(follower: Follower) -> None:
    """The previous keeper was killed mid-line and mid-epoch."""
    data, run, worker = progress(0, 20), follower._run, TaskId.parse("worker/0")
    log = b"Epoch 3/9\n5/5 - 0s - loss: 0.5 - val_f1: 0.25 - 9ms/step\nEpoch 4/9\n3/"
    give(follower, "report", data[:-30], offset=0)
    give(follower, "log", log, offset=0, times=[])
    again = taken_over(run, [])
    give(again, "report", data[-30:], offset=len(data) - 30)
    give(again, "log", b"5 - 0s - loss: 0.1 - val_f1: 0.5 - 8ms/step\n", offset=len(log), times=[])
    again.close()
    found = PointReader(run.folder.points).poll()
    assert [point.step for point in found if "loss" in point.values] == list(range(20))
    others = [point.values for point in found if "loss" not in point.values]
    assert others == [{"val_f1": 0.25}, {"val_f1": 0.5}]
    assert again.fits[worker].fit == fitlines.Fit(4, 9, 3, 5, 0.1, "", 125.0, {"val_f1": 0.5})


def test_a_follower_is_closed_whatever_ends_it(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(timeout: float) -> bool:
        raise OSError(errno.EIO, f"within {timeout} s")

    del follower._run.fleet.sessions["a"]
    attempt = Attempt(follower._run, "1")
    monkeypatch.setattr(attempt._follower, "step", step)
    with pytest.raises(OSError, match="within"):
        attempt.follow()
    assert attempt._follower._closed


def test_a_flood_of_reports_is_bounded_for_viewers_and_on_disk(
    follower: Follower, told: list[ev.Event]
) -> None:
    offset = 0
    flood = b"".join(
        b'{"kind":"data","name":"d","step":"%d"}\n{"kind":"result","x":%d}\n' % (n, n) for n in range(5000)
    )
    for data in (progress(0, 50_000), progress(50_000, 120_000), flood):
        give(follower, "report", data, offset=offset)
        offset += len(data)
    give(follower, "state", state=final())
    assert len(told) < 8000
    assert steps(told)[0] == 0
    assert steps(told)[-1] == 119_999
    assert sorted(steps(told)) == steps(told)
    assert follower._run.folder.points.stat().st_size < 1 << 20
    assert sum(isinstance(event, ev.TaskReported) for event in told) < 300
    assert isinstance(told[-1], ev.TaskExited)


def test_a_full_disk_is_reported_once_however_often_logs_are_requested(
    follower: Follower, told: list[ev.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a quota, or of a limited number of files, the free space shows nothing."""

    def full(_fd: int, _data: bytes) -> None:
        raise OSError(errno.EDQUOT, "it is full")

    monkeypatch.setattr(follower, "attach", lambda _hosts: None)
    monkeypatch.setattr(SESSION, "unfollow", lambda _stream: None, raising=False)
    with monkeypatch.context() as disk:
        disk.setattr(mirror, "write_all", full)
        for _ in range(3):
            give(follower, "log", b"a line", offset=0, times=[])
            follower._due["a"] = 0.0
            follower.step(0.0)
    give(follower, "log", b"a line", offset=0, times=[])
    notes = [event.text.partition(":")[0] for event in told if isinstance(event, ev.Noted)]
    assert notes == ["the logs wait on their hosts", "there is space again on this machine"]


def test_resource_usage_of_tasks_is_sampled(follower: Follower) -> None:
    run = follower._run
    answers = [
        wire.Measured(
            (
                wire.TaskVitals("1", "worker/0", float(at), at << 30, *gpus),
                wire.TaskVitals("1", "worker/9", 1e9, 1 << 60),  # is not on this host
            )
        )
        for at, gpus in enumerate(((), (1 << 30, 90)))
    ]

    def submit(_: object) -> Future[wire.Measured]:
        future = Future[wire.Measured]()
        future.set_result(answers.pop(0))
        return future

    run.fleet.sessions["a"] = cast("Any", SimpleNamespace(submit=submit))
    run.usage = PointFile(run.folder.usage, 1)
    gauge = Gauge(run, follower, 0.0)
    for _ in range(2):  # without a viewer
        gauge.sampled = -math.inf
        gauge.look()
        gauge._take(run.clock.now())
    assert not run.folder.vitals.exists()
    first, second = PointReader(run.folder.usage).poll()
    assert (first.task, first.values) == ("a", {"memory": 0.0})
    assert second.values.pop("cpu") > 0
    assert second.values == {"memory": 1 << 30, "gpu_memory": 1 << 30, "gpu_busy": 90}


def gap(count: int) -> dict[str, Any]:
    return {"bytes": count, "why": "No space left on device", "offset": 0, "ns": 1}


def final(*gaps: dict[str, Any]) -> dict[str, Any]:
    known = {"state": "exited", "want": "stop", "exit_code": 0, "started_ns": 10**9, "ended_ns": 2 * 10**9}
    return {**known, "gaps": list(gaps)}


STEPS = [json.dumps({"kind": "progress", "step": step}).encode() + b"\n" for step in range(1, 7)]
LOSSES = [
    json.dumps({"kind": "progress", "step": n, "loss": float(loss), "f1": 0.5}).encode() + b"\n"
    for n, loss in enumerate(("nan", "inf", "-inf"), 1)
]
FIT = b"Epoch %d/9\n5/5 - 0s - loss: 0.%d - f1: 0.5 - val_loss: 0.25 - lr: 1.0e-03 - 9ms/step\n"
EVALUATED = b"5/5 - 0s - loss: 77.0 - f1: 0.1 - 9ms/step\n"
AN_HOUR_LATER = {**final(), "ended_ns": 3_602 * 10**9, "seconds": 1.5}
Frame: TypeAlias = tuple[str, bytes, dict[str, Any]]
FRAMES: dict[str, list[Frame]] = {
    "hole": [  # which is filled
        ("report", STEPS[0], {"offset": 0}),
        ("report", b"".join(STEPS[2:]), {"offset": len(STEPS[0] + STEPS[1])}),
        ("report", b"".join(STEPS), {"offset": 0}),
    ],
    # Each epoch, even if many arrive at once; output of a later `evaluate` is not an epoch.
    "keras": [
        (
            "log",
            b"warning\n" + b"".join(FIT % (n, n) for n in range(1, 10)) + EVALUATED,
            {"offset": 0, "times": []},
        )
    ],
    "losses": [("report", b"".join(LOSSES), {"offset": 0})],
    "gap": [  # that grew until the task was stopped
        ("state", b"", {"state": {"state": "running", "gaps": [gap(100)]}}),
        ("state", b"", {"state": {"state": "running", "gaps": [gap(40_000)]}}),
        ("state", b"", {"state": final(gap(63_009))}),
    ],
    "clock": [("state", b"", {"state": AN_HOUR_LATER})],
    "restarted": [("state", b"", {"state": {**final(), "state": "lost", "restarted": True}})],
}


@pytest.mark.parametrize("name", FRAMES)
def test_reports_of_a_task_become_events(name: str, follower: Follower, told: list[ev.Event]) -> None:
    for kind, payload, header in FRAMES[name]:
        give(follower, kind, payload, **header)
    matches_golden(f"follow/{name}.txt", "".join(f"{event}\n" for event in told))


def end(code: int) -> ev.TaskExited:
    return ev.TaskExited("worker/0", "a", "1", code, None, "", seconds=3.0, ended=1.0, stopped=False)


@pytest.mark.parametrize("value", ["0.5", None, [], float("nan"), float("inf"), 10**40])
def test_a_non_numeric_result_is_ignored(value: object) -> None:
    """Also from a stranger, or from a custom command, which reports nothing."""
    assert number(value) is None


def test_an_error_of_worker_entry_is_reported_for_its_host(tmp_path: Path) -> None:
    known = {"message": "no data", "why": "no network", "hint": "do this"}
    report = ev.TaskReported("worker/0", ev.Last.ERROR, known)
    error = _failed(tmp_path / "log", "a", end(1), report, 900.0)
    assert (error.what, error.hint) == ("cannot train: no data", "")
    assert error.why == "no network\nits task advises: do this"
    (tmp_path / "log").write_text("the output until the machine restarted\n")
    assert _failed(tmp_path / "log", "a", replace(end(1), lost="restarted"), None, 900.0).why == "restarted"


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        ("a1", "a has error 1"),
        ("a1 b1", "a (and 1 more) has error 1"),
        ("a1 b2", "a has error 1; 1 host failed for other reasons"),
        ("a1 b2 c2", "b (and 1 more) has error 2; 1 host failed for other reasons"),
    ],
)
def test_the_most_common_host_error_is_the_cause_of_a_failed_phase(errors: str, cause: str) -> None:
    made = [HostError(each[0], f"has error {each[1]}", kind="k") for each in errors.split()]
    assert failure(ev.Phase.VALIDATE, made).cause == cause


CHANGED = HostError("a", "presented an unexpected host key", kind=Trouble.HOSTKEY_CHANGED, why="w")


class Troubled:
    """A connector that fails in each of these ways before it connects to this machine."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = iter(errors)
        self._inner = Connectors()

    def connect(self, host: Host, timeout: float) -> Link:
        for error in self.errors:
            raise error
        return self._inner.connect(host, timeout)

    def close(self) -> None:
        self._inner.close()


def test_the_reconnect_thread_survives_everything_and_reports_a_changed_key_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    monkeypatch.setattr(recovery, "_BACKOFF", (0.0,))
    events: list[ev.Event] = []
    emit = Bus(lambda stamped: events.append(stamped.event)).emit
    here = OSError(errno.EMFILE, "Too many open files")
    fleet = Fleet(Troubled(here, KeyError("a bug"), CHANGED, CHANGED, here), loop.put)
    plan = make(replace(host("a"), ssh=LOCAL, state=str(tmp_path / "state"), agent_python=sys.executable))
    run = Run(RunFolder(tmp_path, RunId("r1")), plan, emit, fleet, loop, "me", None)
    recovery.lose(run, "a", "the connection was closed")
    item = loop.get(20)
    assert isinstance(item, Reconnected)
    item.session.close()
    fleet.close()
    reasons = [event.why for event in events if isinstance(event, ev.HostLost)]
    assert reasons[0] == "the connection was closed"
    assert [CHANGED.what in reason for reason in reasons[1:]] == [False, True, False]


def test_a_spare_is_tried_only_while_another_host_is_lost(tmp_path: Path) -> None:
    fleet, loop = Fleet(cast("Any", None), lambda _: None), Loop()
    plan = replace(make(host("a")), spares=(host("b", spare=True),))
    run = Run(RunFolder(tmp_path, RunId("r1")), plan, Bus().emit, fleet, loop, "me", None)
    run.since_lost["a"] = run.clock.now()
    assert not recovery.replaceable(run)
    assert "b" in run.since_lost
    del run.since_lost["a"]  # it is back
    with pytest.raises(queue.Empty):
        loop.get(0.0)
    assert run.since_lost == {}


def test_time_in_which_the_keeper_did_not_run_is_no_silence_of_the_tasks() -> None:
    times, events, task = iter((0.0, 1.0, 61.0, 65.0, 70.0, 71.0)), list[ev.Event](), TaskId.parse("worker/0")
    plan = replace(make(host("a")), hang_timeout=10.0)
    clock = SimpleNamespace(now=lambda: next(times))
    run: Any = SimpleNamespace(
        clock=clock,
        plan=plan,
        since_lost={},
        emit=events.append,
        id="r1",
        fleet=SimpleNamespace(sessions={}),
    )
    lives = {task: Life(0.5)}
    follower: Any = SimpleNamespace(
        placed={task: "a"}, running=lambda: [task], ends={}, held={}, lives=lives, attempt="1"
    )
    watch = Watch(run, follower)
    for expected in (0, 0, 0, 0, 1):
        watch.look()
        assert len(events) == expected
    assert isinstance(events[0], ev.HangSuspected)


FREE = wire.Leased(conflicts=())
HELD = wire.Leased(conflicts=(wire.Conflict(run="r0", task="worker/0", owner="ada@home", port=2222),))


class Told:
    """A fleet of one host that gives these replies, repeating the last one."""

    def __init__(self, *replies: wire.Leased) -> None:
        self.sessions: dict[str, object] = {}
        self.asked = 0
        self._replies = replies

    def ask(self, *_: object, **__: object) -> Answers[wire.Leased]:
        self.asked += 1
        return Answers({"gpu-1": self._replies[min(self.asked, len(self._replies)) - 1]}, {})


def a_run(fleet: Told) -> Any:
    hosts = [SimpleNamespace(name="gpu-1", address="10.0.0.1")]
    plan = make(host("gpu-1"))
    known = {"fleet": fleet, "plan": plan, "stop": StopFlag(), "emit": lambda _event: None, "clock": SYSTEM}
    return SimpleNamespace(id="r1", hosts=hosts, **known)


def test_a_run_that_just_ended_frees_its_ports_soon_and_a_live_one_is_named() -> None:
    fleet = Told(HELD, HELD, FREE)
    lease(a_run(fleet))
    assert fleet.asked == 3
    with pytest.raises(PhaseFailed, match="already uses task port 2222 for run r0"):
        lease(a_run(Told(HELD)))
