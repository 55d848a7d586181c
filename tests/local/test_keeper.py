"""How a keeper ends a run when some of the required steps fail."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from orchestrator import wire
from orchestrator.connectors import Connectors
from orchestrator.errors import ExitStatus
from orchestrator.events import Event, HostRecovered, Noted, Phase, RunEnded, RunLeft, StopRequested
from orchestrator.fleet import Fleet
from orchestrator.model import Host
from orchestrator.names import RunId
from orchestrator.phases import keeper, launch, prepare, recovery
from orchestrator.phases.connect import open_sessions
from orchestrator.phases.context import PhaseFailed, Run
from orchestrator.phases.loop import Loop
from orchestrator.store import RunFolder
from orchestrator.store.bus import Bus
from tests.unit import plans

Heard = list[Event]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[Run, Heard]]:
    """A run whose only task has been started on this machine."""
    here = {
        "agent_python": sys.executable,
        "workdir": str(tmp_path / "work"),
        "state": str(tmp_path / "node"),
    }
    host = Host("here", "local", "127.0.0.1", **here)  # type: ignore[arg-type]
    folder = RunFolder(tmp_path / "runs", RunId("r1"))
    plan = plans.make(host, command=("true",))
    folder.create(plan)
    events: Heard = []
    loop = Loop()
    emit = Bus(lambda stamped: events.append(stamped.event)).emit
    with closing(Fleet(Connectors(), loop.put)) as fleet:
        assert fleet.connect([host]) == {}
        made = Run(folder, plan, emit, fleet, loop, "me", None, started=True)
        assert launch.start(made, "1", plan.tasks, {"here": str(tmp_path)}) == {}
        yield made, events


def test_unreadable_events_produce_one_note_and_one_end(run: tuple[Run, Heard]) -> None:
    kept, events = run
    kept.folder.events.unlink(missing_ok=True)
    kept.folder.events.mkdir()

    def work() -> RunEnded:
        raise PhaseFailed(Phase.LAUNCH, "here is lost", "look at it")

    control = kept.folder.open_control()
    try:
        status = keeper._Keeper(kept, control).guarded(work)
    finally:
        os.close(control)
    assert status is ExitStatus.RUN_FAILED
    (ended,) = [event for event in events if isinstance(event, RunEnded)]
    assert (ended.cause, ended.hint, ended.unproven) == ("launch: here is lost", "look at it", ())
    (note,) = [event.text for event in events if isinstance(event, Noted)]
    assert "the tasks' last output stays on their hosts: the events of run r1 cannot be read" in note


@contextmanager
def no_room_for_a_thread() -> Iterator[None]:
    """Simulate `ulimit -u`, which does not limit root: a stack of this size cannot be allocated."""
    before = threading.stack_size(1 << 46)
    try:
        yield
    finally:
        threading.stack_size(before)


def test_a_lost_host_is_retried_once_a_thread_can_be_created(run: tuple[Run, Heard]) -> None:
    kept, events = run
    with no_room_for_a_thread():
        recovery.lose(kept, "here", "its agent was killed")
        recovery.wait_for_lost(kept, 0.0)
    assert kept.since_lost.keys() == {"here"}
    deadline = time.monotonic() + 60
    while not any(isinstance(event, HostRecovered) for event in events):
        assert time.monotonic() < deadline
        recovery.wait_for_lost(kept, 1.0)
    assert kept.names == ["here"]


def connects(kept: Run) -> RunEnded:
    open_sessions(kept)
    raise AssertionError


def reads_much(_: Run) -> RunEnded:
    bytearray(1 << 62)
    raise AssertionError


def starts_a_thread(_: Run) -> RunEnded:
    threading.Thread(target=id, args=(0,)).start()  # as libraries do
    raise AssertionError


@pytest.mark.parametrize(
    ("work", "cause"),
    [
        (connects, "can't start new thread"),
        (starts_a_thread, "can't start new thread"),
        (reads_much, "no memory is left"),
    ],
)
def test_a_keeper_out_of_threads_or_memory_reports_it(
    run: tuple[Run, Heard], work: Callable[[Run], RunEnded], cause: str
) -> None:
    kept, events = run
    kept.started = False
    control = kept.folder.open_control()
    try:
        with no_room_for_a_thread():
            status = keeper._Keeper(kept, control).guarded(lambda: work(kept))
        assert status is ExitStatus.HERE
    finally:
        os.close(control)
    (ended,) = [event for event in events if isinstance(event, RunEnded)]
    assert cause in ended.cause


def test_a_keeper_gives_up_a_run_that_another_keeper_has_taken_over(run: tuple[Run, Heard]) -> None:
    """After a long disconnection the tasks belong to the other keeper, which alone may end them."""
    kept, events = run
    control = kept.folder.open_control()
    keeping = keeper._Keeper(kept, control)
    with closing(Fleet(Connectors(), lambda _: None)) as other:
        other.connect(kept.hosts)
        other.ask(wire.Keep(run=kept.id, who="eve, elsewhere"))
        try:
            status = keeping.guarded(lambda: keeping._attempts(lambda: prepare._prepare(kept, [])))
        finally:
            os.close(control)
    assert status is ExitStatus.CLUSTER
    assert isinstance(events[-1], RunLeft)
    assert "its keeper is eve, elsewhere, as here reports" in events[-1].why
    assert not any(isinstance(event, StopRequested | RunEnded) for event in events)
