from __future__ import annotations

import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from orchestrator import events as ev
from orchestrator.events import Event, Level, Outcome, Phase, Stamped
from orchestrator.render.live import Paint
from orchestrator.render.region import region
from orchestrator.run.fitlines import Fit
from orchestrator.run.view import View, replay
from orchestrator.run.vitals import Vital, Vitals
from orchestrator.text import plain as bare


def plan(tasks: int) -> ev.RunPlanned:
    placed = tuple((f"worker/{i}", f"gpu-{i + 1:02}") for i in range(tasks))
    return ev.RunPlanned("r1", "", "ann@laptop", ("train.py",), placed, (), "/runs/r1")


def started(tasks: int) -> list[Event]:
    return [ev.TaskStarted(f"worker/{i}", f"gpu-{i + 1:02}", "1", 1) for i in range(tasks)]


def after(*events: Event) -> View:
    """Every event at second 100."""
    return replay([Stamped(100.0, event) for event in events])


def drawn(view: View, now: float = 100.0, height: int = 10, width: int = 200, **more: Any) -> list[str]:
    """All rows; the rule's line is left out of the first one."""
    paint = Paint()
    rows = [paint.row(row, width).plain for row in region(view, now, height, width, **more)]
    assert all(len(row) <= width for row in rows)
    return [rows[0].strip("\u2500 "), *rows[1:]] if rows else []


def written(text: Text, *, colour: bool = True) -> str:
    """What a terminal is sent."""
    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard" if colour else None,
        no_color=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        console.print(text, soft_wrap=True, end="")
    return capture.get()


def test_nothing_is_drawn_before_a_run_and_after_it() -> None:
    assert drawn(View()) == []
    assert drawn(after(plan(1), ev.RunEnded("r1", Outcome.SUCCEEDED, 0, 1.0, "", "", (), ""))) == []


FULL, HALF, EMPTY = f"[{'=' * 24}]", f"[{'=' * 8}{' ' * 16}]", f"[{' ' * 24}]"
THIRDS = f"[{'=' * 16}{' ' * 8}]"

PHASES: list[tuple[list[Event], float, list[str]]] = [
    ([], 105.0, ["run r1 5.0 s"]),
    ([ev.PhaseStarted(Phase.CONNECT, 3)], 102.4, ["run r1 connect, 2 s", f"connect   {EMPTY}  0 of 3 hosts"]),
    (
        [ev.PhaseStarted(Phase.CONNECT, 3), ev.HostConnected("gpu-01", 0.1)],
        112.0,
        ["run r1 connect, 12 s", f"connect   {HALF}  1 of 3 hosts", "  waiting for gpu-[02-03]"],
    ),
    (
        [ev.PhaseStarted(Phase.PREFLIGHT, 3), ev.CheckReported("gpu-02", "python", Level.OK, "x")],
        100.0,
        ["run r1 preflight, 0 s", f"preflight {HALF}  1 of 3 hosts", "  waiting for gpu-[01,03]"],
    ),
    (
        [
            ev.PhaseStarted(Phase.STAGE, 3),
            ev.HostFailed("gpu-01", Phase.STAGE, "tree", "x", "", ""),
            ev.TreeSynced("gpu-02", "d", 1, 1, 1.0, reused=False),
        ],
        100.0,
        ["run r1 stage, 0 s", f"stage     {THIRDS}  2 of 3 hosts", "  waiting for gpu-03"],
    ),
    (
        [
            ev.PhaseStarted(Phase.STAGE, 3),
            ev.CodeSending(300_000_000, 900_000_000, 25_000_000.0),
            ev.TreeSynced("gpu-02", "d", 1, 1, 1.0, reused=False),
        ],
        104.0,
        [
            "run r1 stage, 4 s",
            f"stage     {HALF}  300 MB of 900 MB  25 MB/s  24 s left",
            "  waiting for gpu-[01,03]",
        ],
    ),
    (
        [
            ev.PhaseStarted(Phase.VALIDATE, 3),
            *[ev.HostValidated(f"gpu-0{i}", "d", 1, 1, 1) for i in (1, 2, 3)],
        ],
        300.0,
        ["run r1 validate, 3 min 20 s", f"validate  {FULL}  3 of 3 hosts"],
    ),
]


@pytest.mark.parametrize(("events", "now", "lines"), PHASES)
def test_the_phase_has_a_bar_and_says_whom_it_waits_for(
    events: list[Event], now: float, lines: list[str]
) -> None:
    assert drawn(after(plan(3), *events), now) == lines


RUNNING = after(
    plan(5),
    ev.PhaseStarted(Phase.FOLLOW, 5),
    *started(5),
    ev.TaskReady("worker/1", "5 tasks"),
    ev.TaskProgressed("worker/2", 1240, 0.12345, 41.23),
    ev.TaskProgressed("worker/3", 7, 1e-7, None),
    ev.HostLost("gpu-05", "connection reset\x1b[2J"),
    ev.TaskExited("worker/0", "gpu-01", "1", 3, None, "", 2.0, 0.0, stopped=False),
)


def test_tasks_are_rows() -> None:
    assert drawn(RUNNING, 104.0) == [
        "run r1 running: 4 of 5 tasks, 4 s",
        "task      host    state      step       loss  steps/s",
        "worker/0  gpu-01  ended     exited with 3 after 2.0 s",
        "worker/1  gpu-02  ready     5 tasks",
        "worker/2  gpu-03  training  1,240     0.1235     41.2",
        "worker/3  gpu-04  training      7  1.000e-07",
        "worker/4  gpu-05  unknown   no word for 4.0 s (connection reset)",
    ]


def keras(task: int) -> Vital:
    fit = Fit(3, 8, 12 + task, 20, 0.0678 + task / 1000, "", 5.4)
    return Vital(98.0 - task, fit, cpu=1.8, memory=690_000_000, gpu_memory=10_000_000_000, gpu_busy=92)


def test_a_script_that_reports_nothing_is_read_from_keras_lines() -> None:
    view = after(plan(2), ev.PhaseStarted(Phase.FOLLOW, 2), *started(2))
    vitals = Vitals(100.0, "1", {"worker/0": keras(0), "worker/1": keras(1)})
    assert drawn(view, vitals=vitals)[1:] == [
        "task      host    state     epoch   step    loss  steps/s  last word    CPU  memory         GPU",
        "worker/0  gpu-01  training    3/8  12/20  0.0678      5.4        2 s  180 %  690 MB  92 % 10 GB",
        "worker/1  gpu-02  training    3/8  13/20  0.0688      5.4        3 s  180 %  690 MB  92 % 10 GB",
    ]
    assert drawn(view, vitals=vitals, width=79)[1:] == [
        "task      state     epoch   step    loss  steps/s  last word    CPU         GPU",
        "worker/0  training    3/8  12/20  0.0678      5.4        2 s  180 %  92 % 10 GB",
        "worker/1  training    3/8  13/20  0.0688      5.4        3 s  180 %  92 % 10 GB",
    ]
    assert drawn(view, vitals=vitals, width=33)[1:] == [
        "task      state      step    loss",
        "worker/0  training  12/20  0.0678",
        "worker/1  training  13/20  0.0688",
    ]


def test_more_tasks_than_rows_are_folded_by_state() -> None:
    view = after(
        plan(64),
        ev.PhaseStarted(Phase.FOLLOW, 64),
        *started(64),
        *[ev.TaskProgressed(f"worker/{i}", 100 + i % 2, 0.5 + i / 1000, 40.0) for i in range(60)],
    )
    vitals = Vitals(
        100.0, "1", {f"worker/{i}": Vital(90.0 + i / 10, cpu=i / 64, memory=2**30) for i in range(64)}
    )
    assert drawn(view, height=12, vitals=vitals, width=85) == [
        "run r1 running: 64 tasks, 0 s",
        "task            state         step            loss  steps/s  last word       CPU",
        "worker/[0-59]   training  100..101  0.5000..0.5590     40.0    4..10 s   0..92 %",
        "worker/[60-63]  started                                         3..4 s  94..98 %",
    ]
    assert len(drawn(view, height=2)) == 2


def test_nobody_is_heard_of() -> None:
    quiet = ev.HangSuspected(ev.HangKind.QUIET, ("worker/0", "worker/1"), 180.0)
    view = after(plan(2), *started(2), ev.PhaseStarted(Phase.FOLLOW, 2), quiet)
    vitals = Vitals(130.0, "1", {"worker/0": Vital(-80.0), "worker/1": Vital(-90.0)})
    assert drawn(view, 130.0)[1] == (
        "no word from anybody for 3 min 30 s; `orchestrate stacks r1` shows where they stand"
    )
    assert drawn(view, 130.0, vitals=vitals, width=60)[1:3] == [
        "no word from anybody for 3 min 30 s; `orchestrate stacks r1`",
        "  shows where they stand",
    ]


def test_a_stop_shows_how_long_it_waits_and_what_for() -> None:
    stopping = [plan(2), *started(2), ev.StopRequested(ev.StopBy.USER, "", 30.0)]
    rows = drawn(after(*stopping), 103.0)
    assert rows[0] == "run r1 stopping, 3 s"
    assert rows[1] == "waiting for worker/[0-1]: KILL in 27 s; sooner: Ctrl-C again, or stop --now"
    assert drawn(after(*stopping), 131.0)[1] == "waiting for worker/[0-1]: waiting for KILL"


def test_colours_follow_the_task() -> None:
    paint = Paint()
    paint.learn(after(plan(2)))
    first = paint.line(ev.LogLine("worker/0", "gpu-01", "x [bold]", 0.0))
    assert written(first) == "\x1b[36mworker/0 gpu-01 | \x1b[0mx [bold]"
    second = paint.line(ev.LogLine("worker/1", "gpu-02", "\x1b[31mred", 0.0))
    assert written(second) == "\x1b[32mworker/1 gpu-02 | \x1b[0m\x1b[31mred\x1b[0m"
    assert written(paint.row((("worker/1  x", "task"),), 80)) == "worker/1  x"
    assert written(paint.row((("worker/1  ", "task"), ("x", "")), 80)) == "\x1b[32mworker/1  \x1b[0mx"
    assert written(paint.line(("error: no", ""))) == "\x1b[1;31merror:\x1b[0m no"


def test_a_line_that_is_too_long_is_broken_between_words() -> None:
    paint = Paint()
    paint.learn(after(plan(2)))
    bar = "20/20 [==============================] - 2s 105ms/step - loss: 8.0570e-05 - accuracy: 1.0000"
    lines = [line.plain.rstrip() for line in paint.lines(ev.LogLine("worker/0", "gpu-01", bar, 0.0), 80)]
    assert lines == [
        "worker/0 gpu-01 | 20/20 [==============================] - 2s 105ms/step - loss:",
        "                | 8.0570e-05 - accuracy: 1.0000",
    ]
    assert len(paint.lines(ev.LogLine("worker/0", "gpu-01", "x" * 200, 0.0), 80)) == 1


@given(st.text() | st.text(alphabet=st.sampled_from("\x1b\x9b\x9d[]()m;:01389 \\a漢\u200d\t\0[/]")))
def test_whatever_a_task_prints_only_colours_reach_the_terminal(raw: str) -> None:
    line = Paint().line(ev.LogLine("t", "h", raw, 0.0))
    sent = written(line).removeprefix("t h | ")
    assert unspaced(re.sub(r"\x1b\[[0-9;]+m", "", sent)) == unspaced(bare(raw))


def unspaced(text: str) -> str:
    """Tabs are shown as spaces."""
    return text.replace("\t", "").replace(" ", "")
