from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator import events as ev
from orchestrator import wire
from orchestrator.errors import ClusterError, ExitStatus, HostError, SeveralErrors, UsageError
from orchestrator.events import CheckReported, Level, Outcome, PairReported, Phase, Stamped
from orchestrator.model import RunPlan
from orchestrator.render import errors
from orchestrator.render.clean import lines
from orchestrator.render.preflight import preflight_table
from orchestrator.render.tables import RunRow, runs_table, status_table
from orchestrator.run.fitlines import Fit
from orchestrator.run.view import View, replay
from orchestrator.run.vitals import Vital, Vitals
from orchestrator.store.prune import Pruned
from orchestrator.verbs.clean import Cleaning
from tests.golden import matches_golden
from tests.unit import plans


def checks(host: str, **found: tuple[Level, str]) -> list[CheckReported]:
    return [
        CheckReported(host, check, level, text, f"why {check}", "") for check, (level, text) in found.items()
    ]


def by_width(shown: Mapping[int | None, list[str]]) -> str:
    return "".join(f"--- {width}\n" + "\n".join(lines) + "\n" for width, lines in shown.items())


OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL


def test_preflight_is_a_table_and_the_problems() -> None:
    login, python = (OK, "train"), (OK, "3.11.2")
    cluster = [
        *checks("gpu-01", login=login, python=python, disk=(OK, "120 GB free")),
        *checks("gpu-02", login=login, python=python, disk=(OK, "180 GB free")),
        *checks("gpu-03", login=login, python=python, disk=(WARN, "4 GB free")),
        *checks(
            "gpu-04", login=login, python=(FAIL, "/no/python does not run"), address=(FAIL, "is not its own")
        ),
        *checks("gpu-05", login=login, python=(FAIL, "does not run")),
    ]
    pairs = [PairReported("gpu-01", "gpu-01", "10.0.0.1:2222", True, 0.3, None, "")]
    shown: dict[int | None, list[str]] = {width: preflight_table(cluster, pairs, width) for width in (80, 30)}
    matches_golden("render/preflight.txt", by_width(shown))
    assert preflight_table([], [], 80) == []


def refused(host: str) -> HostError:
    hint = f"ssh train@{host}, or set `identity` under [defaults] in hosts.toml"
    return HostError(host, "refused the login", kind="auth", why='no key was accepted for "train"', hint=hint)


def test_errors_have_three_parts_and_hosts_that_fail_alike_share_one() -> None:
    printed = "it printed:\n\x1b[2JWelcome\n\n  to gpu\x07\n"
    locked = HostError("gpu-10", "refused the login", kind="auth", why="the account is locked", hint="")
    told = (
        UsageError("hosts.toml is empty", why="no [[host]]", hint="see hosts.example.toml"),
        ClusterError("nothing answers", why=printed),
        SeveralErrors([refused("gpu-02"), locked, refused("gpu-03"), refused("gpu-04")]),
    )
    matches_golden("render/errors.txt", "".join("\n".join(errors.lines(one)) + "\n" for one in told))


def plan(run: str = "tidy-otter", command: tuple[str, ...] = ("train.py",)) -> RunPlan:
    made = plans.make(plans.host("gpu-01"), plans.host("gpu-02"), command=command)
    return replace(made, run=run, name="mnist", owner="ann@laptop", created=0.0)


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
    matches_golden("render/runs.txt", by_width(shown))
    # However long what a run is called and how it failed: what matters stays on a narrow terminal.
    ended = replace(ENDED, kind=ev.FailureKind.OUT_OF_MEMORY, seconds=93_780.0)
    night = replace(plan("20261121-010203-abcd"), name="a sweep of the night before")
    seen = view(
        ev.TaskStarted("worker/0", "gpu-01", "1", 7), ev.TaskProgressed("worker/0", 9, 0.25, 2.0), ended
    )
    title, line = runs_table([RunRow(night, seen, kept=False)], json=False, width=80)
    assert title.split() == ["run", "name", "state", "started", "took", "loss"]
    assert line.split("  ")[0] == "abcd"
    assert all(
        word in line for word in ("a sweep", "failed: out-of-memory", "1970-01-01 00:00", "26 h", "0.25")
    )
    facts = json.loads(runs_table(rows, json=True)[0])
    assert (facts["run"], facts["state"], facts["status"]) == ("tidy-otter", "failed", 1)
    assert facts["hosts"] == ["gpu-01", "gpu-02"]
    assert runs_table([], json=False) == []


def node(**state: Any) -> dict[tuple[str, str], tuple[str, wire.TaskStatus]]:
    """What gpu-01 says of its task."""
    known = {"state": {"pid": 7, **state}, "attempt": "1", "task": "worker/0", "alive": False}
    return {("1", "worker/0"): ("gpu-01", wire.read(known, wire.TaskStatus, "a task"))}


def test_status_tells_why_a_run_never_started() -> None:
    error = refused("gpu-02")
    failed = ev.HostFailed(error.host, Phase.CONNECT, error.kind, error.what, error.why, error.hint)
    check = CheckReported("gpu-01", "python", FAIL, "does not run", "no such file", "")
    for event, cause, said in (
        (
            failed,
            "connect: gpu-02 refused the login",
            ["error: gpu-02 refused the login", f"  why: {error.why}"],
        ),
        (check, "preflight: gpu-01 does not run", ["error: gpu-01: python: does not run"]),
        (ev.Noted("-"), "this machine is full", ["error: this machine is full"]),
    ):
        never = view(event, replace(ENDED, outcome=Outcome.CLUSTER, cause=cause, cause_task=""))
        lines = status_table(plan(), never, {}, {}, kept=False, json=False)
        assert [line for line in said if line not in lines] == []


def test_status_is_what_the_nodes_say() -> None:
    started = (
        ev.TaskStarted("worker/0", "gpu-01", "1", 7),
        ev.TaskProgressed("worker/0", 120, 0.5, 41.2),
        ev.TaskStarted("worker/1", "gpu-02", "1", 8),
    )
    vitals = Vitals(100.0, "1", {"worker/0": Vital(98.0, Fit(3, 8), cpu=1.8, memory=2**30)})
    away = {"gpu-02": "timed out while it was asked for the state of the tasks"}
    shown = {
        width: status_table(
            plan(), view(*started), node(state="running"), away,
            kept=True, json=False, vitals=vitals, now=101.0, width=width,
        )
        for width in (None, 100, 80, 60)
    }  # fmt: skip
    assert all(width is None or len(line) <= width for width, lines in shown.items() for line in lines[1:])
    matches_golden("render/status.txt", by_width(shown))


def test_status_as_json_is_one_object() -> None:
    (line,) = status_table(
        plan(), view(ENDED), node(state="exited", exit_signal=9), {"gpu-02": "x"},
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


def test_hosts_that_say_the_same_share_a_line() -> None:
    nothing: dict[str, Any] = {"count": 0, "bytes": 0, "gone": [], "failed": []}
    some = {**nothing, "count": 41, "bytes": 1_200_000_000}
    old = {**some, "gone": [{"name": f"r{n}", "bytes": 25_000_000} for n in range(12)]}
    folders = {**dict.fromkeys(("code", "data", "envs", "scraps"), nothing), "state": old, "work": some}
    process = {"pid": 42, "argv0": "python3", "run": "r1", "task": "worker/0"}
    hosts = {
        f"gpu-{number}": wire.read(
            {"orphans": [], "killed": killed, "trouble": [], "folders": folders}, wire.Cleaned, "a reply"
        )
        for number, killed in ((1, [process]), (2, []), (3, []))
    }
    here = Pruned(0, 0, (), 0, (), ())
    done = Cleaning(hosts, {}, here, frozenset(), work=False, dry=False)
    matches_golden("render/clean.txt", "\n".join(lines(done, json=False)) + "\n")
    assert done.status is ExitStatus.OK
