from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

from orchestrator import events as ev
from orchestrator import wire
from orchestrator.events import CheckReported, Level, Outcome, PairReported, Phase, Stamped
from orchestrator.model import Completion, Host, Role, RunPlan, TaskId, TaskSpec
from orchestrator.render.grid import grid
from orchestrator.render.preflight import host_table, pairs_line, preflight_table
from orchestrator.render.problems import problems
from orchestrator.render.tables import RunRow, runs_table, status_table
from orchestrator.run.fitlines import Fit
from orchestrator.run.view import View, replay
from orchestrator.run.vitals import Vital, Vitals
from tests.golden import matches_golden


def test_a_grid_is_cut_into_blocks_that_fit() -> None:
    rows = [["host", "python", "disk", "clock"], ["gpu-[01-08]", "3.11.2", "ok", "ok"]]
    assert grid(rows) == ["host         python  disk  clock", "gpu-[01-08]  3.11.2  ok    ok"]
    assert grid(rows, 24) == [
        "host         python",
        "gpu-[01-08]  3.11.2",
        "",
        "host         disk  clock",
        "gpu-[01-08]  ok    ok",
    ]
    assert grid(rows, 5) == grid(rows, 13)  # never less than a column beside the first one
    assert grid([]) == []


def test_a_grid_counts_cells_and_lets_nothing_raw_through() -> None:
    assert grid([["漢字", "x"], ["a\x1b[2J\x07", "y"]]) == ["漢字  x", "a␇    y"]
    assert grid([["[bold]x[/foo]", ":warning:"], ["", ""]]) == ["[bold]x[/foo]  :warning:", ""]
    assert grid([["a\tb", "\x1b[31mx"], ["é", "y" * 500]]) == ["a       b  x", "é          " + "y" * 500]


def checks(host: str, **found: tuple[Level, str]) -> list[CheckReported]:
    return [
        CheckReported(host, check, level, text, f"why {check}", "") for check, (level, text) in found.items()
    ]


OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL


def test_hosts_with_equal_rows_share_one() -> None:
    cluster = [
        *checks("gpu-01", login=(OK, "train"), python=(OK, "3.11.2"), disk=(OK, "120 GB free")),
        *checks("gpu-02", login=(OK, "train"), python=(OK, "3.11.2"), disk=(OK, "180 GB free")),
        *checks("gpu-03", login=(OK, "train"), python=(OK, "3.11.2"), disk=(WARN, "4 GB free")),
        *checks("gpu-04", login=(OK, "train"), python=(FAIL, "does not run")),
        CheckReported("gpu-02", "python", OK, "3.11.2"),
    ]
    assert host_table(cluster) == [
        "host         login  python  disk",
        "gpu-[01-02]  train  3.11.2  ok",
        "gpu-03       train  3.11.2  warn",
        "gpu-04       train  FAIL    -",
    ]


def test_the_worst_of_two_findings_is_shown() -> None:
    both = [*checks("a", tensorflow=(FAIL, "2.15.0")), *checks("a", tensorflow=(OK, "2.15.0"))]
    assert host_table(both) == ["host  tensorflow", "a     FAIL"]


def pair(source: str, target: str, why: str = "", ms: float = 0.3) -> PairReported:
    return PairReported(source, target, "10.0.0.1:2222", not why, None if why else ms, None, why)


def test_pairs_are_one_line_however_many_they_are() -> None:
    pairs = [pair("a", "b", ms=12.34), pair("b", "a", "refused")]
    assert pairs_line([]) == []
    assert pairs_line(pairs) == ["1 of 2 connections is open, in at most 12.3 ms (a to b)"]
    pairs[1] = msgspec.structs.replace(pair("b", "a"), large_ms=1.5)
    assert pairs_line(pairs) == [
        "2 of 2 connections are open, in at most 12.3 ms (a to b); 64 kB arrive in at most 1.5 ms"
    ]


def test_preflight_ends_with_the_problems() -> None:
    found = [*checks("a", rsync=(WARN, "not installed")), *checks("b", rsync=(WARN, "not installed"))]
    assert preflight_table(found, [pair("a", "a")], 80) == [
        "host  rsync",
        "a, b  warn",
        "",
        "1 of 1 connection is open, in at most 0.3 ms (a to a)",
        "",
        "warning: a, b: rsync: not installed",
        "  why: why rsync",
    ]
    assert preflight_table([], [], 80) == []


def test_what_is_wrong_with_the_same_hosts_stands_together() -> None:
    found = [
        *checks("a", python=(FAIL, "/no/python does not run"), address=(FAIL, "10.0.0.9 is not a's")),
        *checks("b", python=(FAIL, "does not run")),
        *checks("c", rsync=(WARN, "not installed"), address=(FAIL, "is another one's")),
    ]
    assert problems([found[0], found[2], found[1], *found[3:]]) == [
        "warning: c: rsync: not installed",
        "  why: why rsync",
        "error: a: 2 errors",
        "  python: /no/python does not run",
        "    why: why python",
        "  address: 10.0.0.9 is not a's",
        "    why: why address",
        "error: b: python: does not run",
        "  why: why python",
        "error: c: address: is another one's",
        "  why: why address",
    ]


HOSTS = (Host("gpu-01", "gpu-01", "10.0.0.1"), Host("gpu-02", "gpu-02", "10.0.0.2"))


def plan(run: str = "tidy-otter", command: tuple[str, ...] = ("train.py",)) -> RunPlan:
    tasks = tuple(TaskSpec(TaskId(Role.WORKER, i), host.name, 2222, (), {}) for i, host in enumerate(HOSTS))
    return RunPlan(
        run, "mnist", "ann@laptop", 0.0, HOSTS, {}, tasks, command, Completion.ALL, 30.0, 2.0, 3600.0, ()
    )


def view(*events: ev.Event) -> View:
    planned = ev.RunPlanned(
        "tidy-otter", "mnist", "ann", (), (("worker/0", "gpu-01"), ("worker/1", "gpu-02")), (), "/r"
    )
    return replay([Stamped(100.0 + at, event) for at, event in enumerate((planned, *events))])


ENDED = ev.RunEnded("tidy-otter", Outcome.FAILED, 1, 52.0, "worker/1 failed", "worker/1", (), "/r")


@pytest.fixture
def _utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_utc")
def test_runs_are_a_line_each() -> None:
    rows = [
        RunRow(plan(), view(ENDED), kept=False),
        RunRow(plan("r2", ("python", "-c", "x" * 60)), view(ev.PhaseStarted(Phase.FOLLOW, 2)), kept=True),
        RunRow(plan("r3", ()), view(), kept=False),
        RunRow(plan("r4"), view(), kept=True),
    ]
    shown = {width: runs_table(rows, json=False, width=width) for width in (None, 100, 80, 60)}
    assert all(width is None or len(line) <= width for width, lines in shown.items() for line in lines)
    matches_golden(
        "render/runs.txt",
        "".join(f"--- {width}\n" + "\n".join(lines) + "\n" for width, lines in shown.items()),
    )
    facts = json.loads(runs_table(rows, json=True)[0])
    assert (facts["run"], facts["state"], facts["status"], facts["hosts"]) == (
        "tidy-otter",
        "failed",
        1,
        ["gpu-01", "gpu-02"],
    )
    assert runs_table([], json=False) == []


def node(
    state: str,
    attempt: str = "1",
    task: str = "worker/0",
    *,
    host: str = "gpu-01",
    alive: bool = False,
    **more: Any,
) -> dict[tuple[str, str], tuple[str, wire.TaskStatus]]:
    known = {"state": {"state": state, "pid": 7, **more}, "attempt": attempt, "task": task, "alive": alive}
    return {(attempt, task): (host, wire.read(known, wire.TaskStatus, "a task"))}


def test_status_is_what_the_nodes_say() -> None:
    started = (
        ev.TaskStarted("worker/0", "gpu-01", "1", 7),
        ev.TaskProgressed("worker/0", 120, 0.5, 41.2),
        ev.TaskStarted("worker/1", "gpu-02", "1", 8),
    )
    vitals = Vitals(
        100.0, "1", {"worker/0": Vital(98.0, Fit(3, 8, 12, 20, 0.07, "", 5.4), cpu=1.8, memory=2**30)}
    )
    away = {"gpu-02": "timed out while it was asked for the state of the tasks"}
    shown = {
        width: status_table(
            plan(), view(*started), node("running"), away,
            kept=True, json=False, vitals=vitals, now=101.0, width=width,
        )
        for width in (None, 100, 80, 60)
    }  # fmt: skip
    assert all(width is None or len(line) <= width for width, lines in shown.items() for line in lines[1:])
    matches_golden(
        "render/status.txt",
        "".join(f"--- {width}\n" + "\n".join(lines) + "\n" for width, lines in shown.items()),
    )


STATES: list[tuple[dict[tuple[str, str], tuple[str, wire.TaskStatus]], str]] = [
    ({}, "not started"),
    (node("running"), "running"),
    (node("exited", exit_code=3), "exited       exit status 3"),
    (node("exited", exit_signal=9), "exited       killed by SIGKILL"),
    (node("lost", message="the guard is gone"), "lost         the guard is gone"),
    (node("running", gaps=[{"bytes": 10}, {"bytes": 2}]), "running      12 bytes of its log were lost"),
    (
        {**node("exited", exit_code=1), **node("running", "2"), **node("exited", "validate")},
        "running            2",
    ),
]


@pytest.mark.parametrize(("states", "line"), STATES)
def test_a_task_s_state_is_its_last_attempt_s(
    states: dict[tuple[str, str], tuple[str, wire.TaskStatus]], line: str
) -> None:
    lines = status_table(plan(), view(), states, {}, kept=False, json=False)
    assert lines[0].endswith("unkept, no keeper")
    row = next(one for one in lines if "worker/0" in one)
    assert row.strip() == f"worker/0  gpu-01  {line}"


def test_status_as_json_is_one_object() -> None:
    (line,) = status_table(
        plan(), view(ENDED), node("exited", exit_signal=9), {"gpu-02": "x"},
        kept=False, json=True, keeper="ann@laptop.lan, pid 42",
    )  # fmt: skip
    facts = json.loads(line)
    assert facts["unreachable"] == {"gpu-02": "x"}
    assert facts["keeper"] == {"host": "laptop.lan", "user": "ann", "pid": 42}
    assert [task["attempt"] for task in facts["tasks"]] == [1, None]
    assert [(task["task"], task["state"], task["exit_signal"]) for task in facts["tasks"]] == [
        ("worker/0", "exited", 9),
        ("worker/1", "unknown", None),
    ]
