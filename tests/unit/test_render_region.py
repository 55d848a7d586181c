from typing import Any

from msgspec.structs import replace

from orchestrator import events as ev
from orchestrator.events import Event, Outcome, Phase, Stamped
from orchestrator.render.board import region
from orchestrator.run.fitlines import Fit
from orchestrator.run.view import HostState, View, Vital, Vitals, apply, replay
from tests.golden import matches_golden


def plan(tasks: int) -> ev.RunPlanned:
    placed = tuple((f"worker/{i}", f"gpu-{i + 1:02}") for i in range(tasks))
    return ev.RunPlanned("r1", "", "ann@laptop", ("train.py",), placed, (), "/runs/r1")


def started(tasks: int) -> list[Event]:
    return [ev.TaskStarted(f"worker/{i}", f"gpu-{i + 1:02}", "1", 1) for i in range(tasks)]


def after(*events: Event) -> View:
    """Apply every event at second 100."""
    return replay([Stamped(100.0, event) for event in events])


def drawn(view: View, now: float = 100.0, height: int = 10, width: int = 200, **more: Any) -> list[str]:
    """Return all rows; the first one without the rule's line characters."""
    rows = [text for text, _ in region(view, now, height, width, **more)]
    assert all(len(row) <= width for row in rows)
    return [rows[0].strip("\u2500 "), *rows[1:]] if rows else []


WAITING = ev.HostConnected("gpu-01", 0.1)
STAGED = ev.TreeSynced("gpu-02", "d", 1, 1, 1.0, reused=False)
BYTES = ev.Stepped("", "", 300_000_000, 900_000_000)


def keras(task: int) -> Vital:
    fit = Fit(3, 8, 12 + task, 20, 0.0678 + task / 1000, "", 5.4)
    return Vital(98.0 - task, fit, cpu=1.8, memory=690_000_000, gpu_memory=10_000_000_000, gpu_busy=92)


def test_the_board_shows_the_run() -> None:
    running = after(
        plan(5),
        ev.PhaseStarted(Phase.FOLLOW, 5),
        *started(5),
        ev.TaskReady("worker/1", "5 tasks"),
        ev.TaskProgressed("worker/2", 1240, 0.12345, 41.23),
        ev.TaskProgressed("worker/3", 7, 1e-7, None),
        ev.HostLost("gpu-05", "connection reset\x1b[2J"),
        ev.TaskExited("worker/0", "gpu-01", "1", 3, None, "", 2.0, 0.0, stopped=False),
    )
    two = after(plan(2), ev.PhaseStarted(Phase.FOLLOW, 2), *started(2))
    vitals = Vitals(100.0, "1", {"worker/0": keras(0), "worker/1": keras(1)})
    many = after(
        plan(64),
        ev.PhaseStarted(Phase.FOLLOW, 64),
        *started(64),
        *[ev.TaskProgressed(f"worker/{i}", 100 + i % 2, 0.5, 40.0) for i in range(62)],
        ev.HostLost("gpu-61", "reset"),
    )
    over = ev.RunEnded("r1", Outcome.SUCCEEDED, 0, 1.0, "", "", (), "")
    boards = {
        "before a run": drawn(View()),
        "after it": drawn(after(plan(1), over)),
        "a run with a name": drawn(after(replace(plan(1), name="night"), *started(1))),
        "before a phase": drawn(after(plan(3)), 105.0),
        "hosts that are waited for": drawn(after(plan(3), ev.PhaseStarted(Phase.CONNECT, 3), WAITING), 112.0),
        "bytes": drawn(after(plan(3), ev.PhaseStarted(Phase.STAGE, 3), BYTES, STAGED), 104.0),
        "tasks": drawn(running, 104.0),
        "read from Keras' lines": drawn(two, vitals=vitals),
        "narrow": drawn(two, vitals=vitals, width=33),
        "more tasks than rows": drawn(many, height=6),
        "two rows": drawn(many, height=2),
    }
    text = "".join(f"--- {name}\n" + "\n".join(rows or ["nothing"]) + "\n" for name, rows in boards.items())
    matches_golden("render/board.txt", text)


def exited(task: str, host: str, code: int | None = 0) -> ev.TaskExited:
    return ev.TaskExited(task, host, "1", code, None, "", 5.0, 200.0, stopped=False)


def test_a_hang_is_shown_until_it_resolves_or_the_tasks_restart() -> None:
    suspected = ev.HangSuspected(ev.HangKind.SILENT, ("worker/0", "worker/1"), 60.0)
    taken = ev.StacksTaken(("worker/1",), "worker/1 hangs", "/runs/r1/stacks/1.txt", (), 0.5)
    view = after(plan(2), *started(2), suspected, taken)
    assert (view.hang, view.stacks) == (suspected, taken)
    assert apply(view, ev.HangPassed(70.0)).hang is None
    assert apply(view, ev.TaskStarted("worker/0", "gpu-01", "2", 13)).hang is None
    failed = ev.AttemptFailed("1", "it hung", "worker/1", (), "", 1.0, 1, 3)
    assert apply(view, failed).hang is None
    again = apply(apply(view, ev.HangPassed(70.0)), suspected)
    assert again.stacks is None


def test_a_restart_resets_the_board_and_the_stop() -> None:
    first = after(
        plan(2),
        *started(2),
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


def test_lost_bytes_are_counted_and_dropped_lines_are_not() -> None:
    gaps = [
        ev.LogGap("worker/0", ev.GapPlace.NODE, 10, "disk full"),
        ev.LogGap("worker/0", ev.GapPlace.DISPLAY, 5, "slow"),
    ]
    assert after(plan(2), *gaps, gaps[0]).tasks["worker/0"].missing == 20
