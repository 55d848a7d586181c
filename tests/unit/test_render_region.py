from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from orchestrator import events as ev
from orchestrator.events import Event, Level, Outcome, Phase, Stamped
from orchestrator.render.paint import Paint
from orchestrator.render.region import region
from orchestrator.text import plain as bare
from orchestrator.view import View, replay


def plan(tasks: int) -> ev.RunPlanned:
    placed = tuple((f"worker/{i}", f"gpu-{i + 1:02}") for i in range(tasks))
    return ev.RunPlanned("r1", "", "ann@laptop", ("train.py",), placed, (), "/runs/r1")


def started(tasks: int) -> list[Event]:
    return [ev.TaskStarted(f"worker/{i}", f"gpu-{i + 1:02}", "1", 1) for i in range(tasks)]


def after(*events: Event) -> View:
    """Every event at second 100."""
    return replay([Stamped(100.0, event) for event in events])


def shown(view: View, now: float = 100.0, height: int = 10, width: int = 200) -> list[str]:
    paint = Paint()
    return [paint.row(row, width).plain for row in region(view, now, height)]


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
    assert shown(View()) == []
    assert shown(after(plan(1), ev.RunEnded("r1", Outcome.SUCCEEDED, 0, 1.0, "", "", (), ""))) == []


PHASES: list[tuple[list[Event], float, str]] = [
    ([], 105.0, "run r1  5.0 s"),
    ([ev.PhaseStarted(Phase.CONNECT, 3)], 102.4, "run r1  connect: 3 hosts  2 s"),
    (
        [ev.PhaseStarted(Phase.CONNECT, 3), ev.HostConnected("gpu-01", 0.1)],
        112.0,
        "run r1  connect: 1 of 3 hosts, waiting for gpu-[02-03]  12 s",
    ),
    (
        [ev.PhaseStarted(Phase.PREFLIGHT, 3), ev.CheckReported("gpu-02", "python", Level.OK, "x")],
        100.0,
        "run r1  preflight: 1 of 3 hosts, waiting for gpu-[01,03]  0 s",
    ),
    (
        [
            ev.PhaseStarted(Phase.STAGE, 3),
            ev.HostFailed("gpu-01", Phase.STAGE, "tree", "x", "", ""),
            ev.TreeSynced("gpu-02", "d", 1, 1, 1.0, reused=False),
        ],
        100.0,
        "run r1  stage: 2 of 3 hosts, waiting for gpu-03  0 s",
    ),
    (
        [
            ev.PhaseStarted(Phase.VALIDATE, 3),
            *[ev.HostValidated(f"gpu-0{i}", "d", 1, 1, 1) for i in (1, 2, 3)],
        ],
        300.0,
        "run r1  validate: 3 hosts  3 min 20 s",
    ),
]


@pytest.mark.parametrize(("events", "now", "line"), PHASES)
def test_the_phase_says_whom_it_waits_for(events: list[Event], now: float, line: str) -> None:
    assert shown(after(plan(3), *events), now) == [line]


def test_without_a_run_the_phase_stands_alone() -> None:
    assert shown(after(ev.PhaseStarted(Phase.CONNECT, 3))) == ["connect: 3 hosts  0 s"]


def test_tasks_are_rows() -> None:
    view = after(
        plan(5),
        ev.PhaseStarted(Phase.FOLLOW, 5),
        *started(5),
        ev.TaskReady("worker/1", "5 tasks"),
        ev.TaskProgressed("worker/2", 1240, 0.12345, 41.23),
        ev.TaskProgressed("worker/3", 7, 1e-7, None),
        ev.HostLost("gpu-05", "connection reset\x1b[2J"),
        ev.TaskExited("worker/0", "gpu-01", "1", 3, None, "", 2.0, 0.0, stopped=False),
    )
    assert shown(view, 104.0) == [
        "run r1  running: 4 of 5 tasks  4 s",
        "worker/0  gpu-01  ended     exited with 3 after 2.0 s",
        "worker/1  gpu-02  ready     5 tasks",
        "worker/2  gpu-03  training  step 1,240  loss 0.1235  41.2 steps/s",
        "worker/3  gpu-04  training  step 7  loss 1.000e-07",
        "worker/4  gpu-05  unknown   no word from its host for 4.0 s (connection reset)",
    ]
    assert shown(view, 140.0)[3].endswith("41.2 steps/s  none for 40 s")


def test_more_tasks_than_rows_are_folded_by_state() -> None:
    view = after(
        plan(64),
        ev.PhaseStarted(Phase.FOLLOW, 64),
        *started(64),
        *[ev.TaskProgressed(f"worker/{i}", 100 + i % 2, 0.5 + i / 1000, 40.0) for i in range(60)],
    )
    assert shown(view, height=12) == [
        "run r1  running: 64 tasks  0 s",
        "worker/[0-59]   60 tasks  training  step 100 to 101  loss 0.5000 to 0.5590  40.0 steps/s",
        "worker/[60-63]  4 tasks   started",
    ]
    assert len(shown(view, height=2)) == 2


def test_a_hang_is_shown_until_it_passes() -> None:
    suspected = ev.HangSuspected("silent", ("worker/0", "worker/1"), 60.0)
    running = (plan(2), *started(2), ev.PhaseStarted(Phase.FOLLOW, 2))
    assert shown(after(*running, suspected))[0] == "run r1  silent, perhaps hanging: worker/[0-1]"
    assert "running" in shown(after(*running, suspected, ev.HangPassed(1.0)))[0]


def test_a_stop_shows_how_long_it_waits() -> None:
    stopping = after(plan(2), *started(2), ev.StopRequested("user", "", 30.0))
    assert shown(stopping, 103.0)[0] == "run r1  stopping: waiting for TERM, 27 s: worker/[0-1]"
    assert shown(stopping, 131.0)[0] == "run r1  stopping: waiting for KILL: worker/[0-1]"


# Cells of a row, and what of it stands in 5 and in 3 cells.
WIDTHS = [
    (("漢字漢字", "tail"), "漢字", "漢"),
    (("abc", "defg"), "abcde", "abc"),
    (("ab", "cd"), "abcd", "abc"),
    (("e\u0301xyz",), "e\u0301xyz", "e\u0301xy"),
    (("a👍b",), "a👍b", "a👍"),
]


@pytest.mark.parametrize(("cells", "five", "three"), WIDTHS)
def test_a_row_is_cut_to_the_screen_by_cells(cells: tuple[str, ...], five: str, three: str) -> None:
    row = tuple((text, "green") for text in cells)
    assert [Paint().row(row, width).plain for width in (5, 3, 0, -1)] == [five, three, "", ""]


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


def test_every_task_has_a_colour_that_exists() -> None:
    paint = Paint()
    paint.learn(after(plan(9)))
    lines = [paint.line(ev.LogLine(f"worker/{i}", f"gpu-{i + 1:02}", "", 0.0)) for i in range(9)]
    assert len({written(line).partition("m")[0] for line in lines}) == 9


def test_without_colours_there_are_none() -> None:
    paint = Paint()
    paint.learn(after(plan(1)))
    line = paint.line(ev.LogLine("worker/0", "gpu-01", "\x1b[1;31mred\x1b[0m", 0.0))
    assert written(line, colour=False) == "worker/0 gpu-01 | red"
    assert written(paint.line(("stopping", "yellow")), colour=False) == "stopping"


@given(st.text() | st.text(alphabet=st.sampled_from("\x1b\x9b\x9d[]()m;:01389 \\a漢\u200d\t\0[/]")))
def test_whatever_a_task_prints_only_colours_reach_the_terminal(raw: str) -> None:
    line = Paint().line(ev.LogLine("t", "h", raw, 0.0))
    sent = written(line).removeprefix("t h | ")
    assert unspaced(re.sub(r"\x1b\[[0-9;]+m", "", sent)) == unspaced(bare(raw))


def unspaced(text: str) -> str:
    """Tabs are shown as spaces."""
    return text.replace("\t", "").replace(" ", "")
