from __future__ import annotations

from orchestrator import events as ev
from orchestrator.events import Event, Phase, Stamped
from orchestrator.run.view import HostState, View, apply, replay

PLAN = ev.RunPlanned(
    "r1", "", "ann@laptop", ("train.py",), (("worker/0", "gpu-01"), ("worker/1", "gpu-02")), (), "/runs/r1"
)
STARTED = [ev.TaskStarted("worker/0", "gpu-01", "1", 11), ev.TaskStarted("worker/1", "gpu-02", "1", 12)]


def after(*events: Event) -> View:
    return replay([Stamped(float(at), event) for at, event in enumerate(events, 100)])


def states(view: View) -> dict[str, str]:
    return {task.task: str(view.state(task)) for task in view.tasks.values()}


def exited(task: str, host: str, code: int | None = 0, attempt: str = "1") -> ev.TaskExited:
    return ev.TaskExited(task, host, attempt, code, None, "", 5.0, 200.0, stopped=False)


def test_a_planned_run_knows_its_tasks_and_hosts() -> None:
    view = after(PLAN)
    assert states(view) == {"worker/0": "planned", "worker/1": "planned"}
    assert [host.state for host in view.hosts.values()] == [HostState.WAITING] * 2
    assert view.began == 100


def test_a_task_goes_through_its_states() -> None:
    story: list[tuple[Event, str]] = [
        (STARTED[0], "started"),
        (ev.TaskReady("worker/0", "2 tasks"), "ready"),
        (ev.TaskProgressed("worker/0", 5, 0.5, 10.0), "training"),
        (ev.HostLost("gpu-01", "connection reset"), "unknown"),
        (ev.HostRecovered("gpu-01", 3.0), "training"),
        (exited("worker/0", "gpu-01"), "ended"),
        (ev.HostLost("gpu-01", "connection reset"), "ended"),
    ]
    view = after(PLAN)
    for event, state in story:
        view = apply(view, event)
        assert states(view)["worker/0"] == state


def test_a_hang_is_known_until_it_passes_or_the_tasks_start_again() -> None:
    suspected = ev.HangSuspected(ev.HangKind.SILENT, ("worker/0", "worker/1"), 60.0)
    taken = ev.StacksTaken(("worker/1",), "worker/1 hangs", "/runs/r1/stacks/1.txt", (), 0.5)
    view = after(PLAN, *STARTED, suspected, taken)
    assert (view.hang, view.stacks) == (suspected, taken)
    assert apply(view, ev.HangPassed(70.0)).hang is None
    assert apply(view, ev.TaskStarted("worker/0", "gpu-01", "2", 13)).hang is None
    failed = ev.AttemptFailed("1", "it hung", "worker/1", (), "", 1.0, 1, 3)
    assert apply(view, failed).hang is None
    again = apply(apply(view, ev.HangPassed(70.0)), suspected)
    assert again.stacks is None


def test_a_restart_begins_afresh_and_forgets_the_stop() -> None:
    first = after(
        PLAN,
        *STARTED,
        ev.TaskProgressed("worker/0", 5, 0.5, 1.0),
        ev.StopRequested(ev.StopBy.FAILURE, "worker/1", 2.0),
    )
    assert first.stop is not None
    ended = apply(apply(first, exited("worker/0", "gpu-01")), exited("worker/1", "gpu-02", 3))
    again = apply(ended, ev.TaskStarted("worker/1", "gpu-09", "2", 13), 500)
    assert again.stop is None
    task = again.tasks["worker/1"]
    assert (task.host, task.attempt, task.started, task.exited) == ("gpu-09", "2", 500, None)
    assert again.hosts["gpu-09"].state is HostState.WAITING


def test_phases_begin_and_end() -> None:
    view = after(ev.PhaseStarted(Phase.CONNECT, 2), ev.PhaseEnded(Phase.CONNECT, ok=True, seconds=0.5))
    assert view.phase is None
    view = apply(view, ev.PhaseStarted(Phase.PREFLIGHT, 2), 7.0)
    assert view.phase is not None
    assert (view.phase.phase, view.phase.started) == (Phase.PREFLIGHT, 7.0)
    view = apply(view, ev.PhaseEnded(Phase.PREFLIGHT, ok=False, seconds=1.0))
    assert [(p.phase, p.ok, p.seconds) for p in view.phases] == [
        ("connect", True, 0.5),
        ("preflight", False, 1.0),
    ]


def test_lost_bytes_are_counted_and_dropped_lines_are_not() -> None:
    gaps = [
        ev.LogGap("worker/0", ev.GapPlace.NODE, 10, "disk full"),
        ev.LogGap("worker/0", ev.GapPlace.DISPLAY, 5, "slow"),
    ]
    assert after(PLAN, *gaps, gaps[0]).tasks["worker/0"].missing == 20
