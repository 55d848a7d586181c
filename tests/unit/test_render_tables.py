"""Tables and errors at any terminal width, the rows of a long step, and the users of a machine."""

import io
import json
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress

from orchestrator import events as ev
from orchestrator import wire
from orchestrator.cli.desk.out import bars
from orchestrator.errors import ClusterError, ExitStatus, HostError, SeveralErrors, UsageError
from orchestrator.model import Host, RunPlan
from orchestrator.render import errors, progress, tables
from orchestrator.render.clean import lines
from orchestrator.render.preflight import preflight_table
from orchestrator.run.fitlines import Fit
from orchestrator.run.view import View, Vital, Vitals, replay
from orchestrator.store.folder import encode_plan
from orchestrator.store.key import seal
from orchestrator.store.prune import Pruned
from orchestrator.verbs.clean import Cleaning
from orchestrator.verbs.status import Machines, StatusReport
from tests.golden import matches_golden
from tests.unit import plans


def checks(host: str, **found: tuple[ev.Level, str]) -> list[ev.CheckReported]:
    return [
        ev.CheckReported(host, check, level, text, f"why {check}", "")
        for check, (level, text) in found.items()
    ]


def by_width(shown: Mapping[int | None, list[str]]) -> str:
    return "".join(f"--- {width}\n" + "\n".join(lines) + "\n" for width, lines in shown.items())


OF_HOSTS = ("has no python3", "could not be resolved", "reports: cannot write", "the login ended")
OK, WARN, FAIL = ev.Level.OK, ev.Level.WARN, ev.Level.FAIL


def test_preflight_shows_a_table_and_the_problems() -> None:
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
    pairs = [ev.PairReported("gpu-01", "gpu-01", "10.0.0.1:2222", True, 0.3, None, "")]
    shown: dict[int | None, list[str]] = {width: preflight_table(cluster, pairs, width) for width in (80, 30)}
    matches_golden("render/preflight.txt", by_width(shown))
    assert preflight_table([], [], 80) == []


def refused(host: str) -> HostError:
    hint = f"ssh train@{host}, or set `identity` under [defaults] in hosts.toml"
    return HostError(host, "refused the login", kind="auth", why='no key was accepted for "train"', hint=hint)


def test_errors_have_three_parts_and_equal_failures_share_one() -> None:
    printed = "it printed:\n\x1b[2JWelcome\n\n  to gpu\x07\n"
    locked = HostError("gpu-10", "refused the login", kind="auth", why="the account is locked", hint="")
    reports = (
        UsageError("hosts.toml is empty", why="no [[host]]", hint="see hosts.example.toml"),
        ClusterError("nothing answers", why=printed),
        SeveralErrors([refused("gpu-02"), locked, refused("gpu-03"), refused("gpu-04")]),
        *(SeveralErrors(HostError(host, what, kind="") for host in ("a", "b")) for what in OF_HOSTS),
    )
    matches_golden("render/errors.txt", "".join("\n".join(errors.lines(one)) + "\n" for one in reports))


def plan(run: str = "tidy-otter", command: tuple[str, ...] = ("train.py",)) -> RunPlan:
    made = plans.make(plans.host("gpu-01"), plans.host("gpu-02"), command=command)
    return replace(made, run=run, name="mnist", owner="ann@laptop", created=0.0)


def view(*events: ev.Event) -> View:
    planned = ev.RunPlanned(
        "tidy-otter", "mnist", "ann", (), (("worker/0", "gpu-01"), ("worker/1", "gpu-02")), (), "/r"
    )
    return replay([ev.Stamped(100.0 + at, event) for at, event in enumerate((planned, *events))])


ENDED = ev.RunEnded("tidy-otter", ev.Outcome.FAILED, 1, 52.0, "worker/1 failed", "worker/1", (), "/r")


# With a long name and cause of failure, a narrow terminal still shows the essentials.
NIGHT = view(
    ev.TaskStarted("worker/0", "gpu-01", "1", 7),
    ev.TaskProgressed("worker/0", 9, 0.25, 2.0),
    replace(ENDED, kind=ev.FailureKind.OUT_OF_MEMORY, seconds=93_780.0),
)


@pytest.fixture
def _utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_utc")
def test_each_run_is_one_line() -> None:
    rows = [
        tables.RunRow(plan(), view(ENDED), kept=False),
        tables.RunRow(
            plan("r2", ("python", "-c", "x" * 60)), view(ev.PhaseStarted(ev.Phase.FOLLOW, 2)), kept=True
        ),
        tables.RunRow(plan("r3", ()), view(), kept=False),
        tables.RunRow(plan("r4"), view(), kept=True),
    ]
    shown = {width: tables.runs_table(rows, json=False, width=width) for width in (None, 100, 80, 60)}
    assert all(width is None or len(line) <= width for width, lines in shown.items() for line in lines)
    long = tables.RunRow(
        replace(plan("20261121-010203-abcd"), name="a sweep of the night before"), NIGHT, kept=False
    )
    text = by_width(shown) + by_width({80: tables.runs_table([long], json=False, width=80)})
    matches_golden("render/runs.txt", text)
    facts = json.loads(tables.runs_table(rows, json=True)[0])
    assert (facts["run"], facts["state"], facts["status"]) == ("tidy-otter", "failed", 1)
    assert facts["hosts"] == ["gpu-01", "gpu-02"]
    assert tables.runs_table([], json=False) == []


def node(**state: Any) -> dict[tuple[str, str], tuple[str, wire.TaskStatus]]:
    """Return gpu-01's report of its task."""
    known = {"state": {"pid": 7, **state}, "attempt": "1", "task": "worker/0", "alive": False}
    return {("1", "worker/0"): ("gpu-01", wire.read(known, wire.TaskStatus, "a task"))}


def test_status_shows_why_a_run_never_started() -> None:
    error = refused("gpu-02")
    failed = ev.HostFailed(error.host, ev.Phase.CONNECT, error.kind, error.what, error.why, error.hint)
    check = ev.CheckReported("gpu-01", "python", FAIL, "does not run", "no such file", "")
    text = ""
    for event, cause in (
        (failed, "connect: gpu-02 refused the login"),
        (check, "preflight: gpu-01 does not run"),
        (ev.Noted("-"), "this machine is full"),
    ):
        never = view(event, replace(ENDED, outcome=ev.Outcome.CLUSTER, cause=cause, cause_task=""))
        text += "\n".join(
            [*tables.status_table(StatusReport(plan(), never, {}, {}, kept=False), json=False), "", ""]
        )
    matches_golden("render/status_unstarted.txt", text)


def test_status_shows_what_the_nodes_report() -> None:
    started = (
        ev.TaskStarted("worker/0", "gpu-01", "1", 7),
        ev.TaskProgressed("worker/0", 120, 0.5, 41.2),
        ev.TaskStarted("worker/1", "gpu-02", "1", 8),
    )
    vitals = Vitals(100.0, "1", {"worker/0": Vital(98.0, Fit(3, 8), cpu=1.8, memory=2**30)})
    away = {"gpu-02": "timed out while it was asked for the state of the tasks"}
    report = StatusReport(plan(), view(*started), node(state="running"), away, kept=True, vitals=vitals)
    shown = {
        width: tables.status_table(report, json=False, now=101.0, width=width)
        for width in (None, 100, 80, 60)
    }
    assert all(width is None or len(line) <= width for width, lines in shown.items() for line in lines[1:])
    matches_golden("render/status.txt", by_width(shown))


def test_status_as_json_is_one_object() -> None:
    states, keeper = node(state="exited", exit_signal=9), "ann@laptop.lan, pid 42"
    report = StatusReport(plan(), view(ENDED), states, {"gpu-02": "x"}, kept=False, keeper=keeper)
    (line,) = tables.status_table(report, json=True)
    matches_golden("render/status.json", json.dumps(json.loads(line), indent=1) + "\n")


def test_hosts_with_equal_output_share_a_line() -> None:
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


def test_a_thousand_hosts_fit_on_the_screen() -> None:
    hosts = [Host(f"gpu-{n:04}", f"gpu-{n:04}", f"10.0.{n // 250}.{n % 250 + 1}") for n in range(1000)]
    many = plans.make(*hosts, command=("train",))
    tasks = ((f"worker/{n}", host.name) for n, host in enumerate(hosts))
    states = {("1", task): (host, node(state="running")["1", "worker/0"][1]) for task, host in tasks}
    failed = node(state="exited", exit_code=1)["1", "worker/0"][1]
    states["1", "worker/700"] = "gpu-0700", failed
    lines = tables.status_table(
        StatusReport(many, View(), states, {}, kept=True), json=False, now=1.0, width=80, height=23
    )
    assert len(lines) <= 23
    assert "exited" in lines[2]
    assert lines[-1].split() == ["and", "985", "more", "tasks:", "985", "running"]
    machines = [
        tables.MachineRow(host.name, "ann", "r1", [f"worker/{n}"])
        if n
        else tables.MachineRow(host.name, said="free")
        for n, host in enumerate(hosts)
    ]
    rows = tables.machines_table(machines, json=False, now=1.0, width=None, height=23)
    assert [row.split()[0] for row in rows] == ["host", "gpu-0000", "gpu-[0001-0999]"]
    assert "worker/[1-999]" in rows[2]
    failures = (HostError(host.name, "fails", kind="x", why=f"reason {n}") for n, host in enumerate(hosts))
    blocks = errors.lines(SeveralErrors(failures))
    assert len(blocks) == 21
    assert blocks[-1].startswith("and others on gpu-[0010-0999]")


# --- The rows of a long step on a terminal, and its final message ---

HOSTS = ("gpu-01", "gpu-02", "gpu-03")
BAR = re.compile("[\u2500-\u257f]+")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def each(
    step: str, done: int = 0, total: int = 0, *, unit: str = "bytes", hosts: int = 3
) -> list[ev.Stepped]:
    return [ev.Stepped(host, step, done, total, unit) for host in HOSTS[:hosts]]


# The state of each host, and the rows on the screen twelve seconds later.
SCREENS: list[tuple[list[ev.Stepped], list[str]]] = [
    ([ev.Stepped("", "resolve packages")], ["this machine: resolve packages 12 s"]),
    ([ev.Stepped("", "resolve packages"), ev.Stepped("", "")], []),
    (each("unpack", 10**9), ["gpu-[01-03]: unpack 3.0 GB"]),
    (
        [*each("unpack", 10**9), *each("install", 20, 80, unit="packages", hosts=2)],
        ["gpu-03: unpack 1.0 GB", "gpu-[01-02]: install | 40 of 160 packages"],
    ),
    ([*each("import check"), *each("", hosts=2)], ["gpu-03: import check 12 s"]),
    (
        each("receive packages", 12 * 10**7, 24 * 10**7, hosts=1),
        ["gpu-01: receive packages | 120 MB of 240 MB, 10 MB/s"],
    ),
    ([*each("unpack", 7), *each("")], []),
]


@pytest.mark.parametrize(("steps", "rows"), SCREENS)
def test_hosts_at_the_same_step_share_a_row(
    steps: list[ev.Stepped], rows: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, made = [0.0], list[Progress]()

    def start(self: Progress) -> None:
        made.append(self)

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=Terminal(), get_time=lambda: now[0]))
    monkeypatch.setattr(Progress, "start", start)
    with progress.steps() as show:
        for step in steps:
            show(step)
        now[0] = 12.0
        screen = Console(file=io.StringIO(), width=100, record=True)
        screen.print(made[0].get_renderable())
    lines = [" ".join(BAR.sub("|", line).split()) for line in screen.export_text().splitlines()]
    assert sorted(filter(None, lines)) == sorted(rows)


def test_results_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    made = [
        ev.EnvironmentMade(host, "/e", {"python": "3.11.2"}, float(at), reused=False)
        for at, host in enumerate(HOSTS, 31)
    ]
    data = [ev.DataPlaced(host, "d", "/d", 10**9, 0, 0, 1.0, reused=True) for host in HOSTS]
    other = ev.EnvironmentMade("head", "/e", {"python": "3.12.0"}, 9.0, reused=False)
    with bars(json=False) as emit:
        for one in made:
            emit(one)
        emit(other)
        for another in data:
            emit(another)
    assert capsys.readouterr().err.splitlines() == [
        "gpu-[01-03]: environment created in 31 s to 33 s: python 3.11.2",
        "head: environment created in 9.0 s: python 3.12.0",
        "gpu-[01-03]: data already there (1.0 GB)",
    ]


# --- `status --machines`: reports of hosts, and the table ---

NOW = 1_700_000_000
PLAN = plans.make(plans.host("a", devices=("0", "1")), command=("true",))
EVIL = "\x1b[2J\u202e" + "x" * 5000


def status(run: str, plan: str, attempt: str = "1", *, alive: bool = True) -> dict[str, Any]:
    state = {"state": "running", "started_ns": (NOW - 90) * 10**9}
    task = {"attempt": attempt, "task": "worker/0", "state": state, "alive": alive}
    return {"run": run, "plan": plan, "keeper": None, "stopped": False, "tasks": [task]}


def test_each_user_of_a_host_is_a_row() -> None:
    ours = seal(encode_plan(PLAN), None)
    fields = {"users": "pid 7 python (user bob); pid 8 x (run r1, user me)"}
    since = (NOW - 3600) * 10**9
    told: dict[str, Any] = {
        "ours": ([status("r1", ours)], {"gpus": [{"index": 1, "name": "A100", "fields": fields}]}),
        "validation": ([status("r1", ours, "validate")], {}),
        "over": ([status("r1", ours, alive=False)], {}),
        "other": ([], {"others": [["ann@home", "r7", since]]}),
        "liar": ([status("r2", EVIL)], {"others": [[EVIL, EVIL, since]]}),
    }
    states = {host: wire.read({"runs": runs}, wire.Runs, "states") for host, (runs, _) in told.items()}
    states["other"] = wire.Runs((), standbys=(wire.StandbyTask("train.py", 0),))
    gpus = {host: wire.read({"gpus": [], **gpu}, wire.GpuLook, "gpus") for host, (_, gpu) in told.items()}
    silent = {"gone": "cannot be reached: no route to host"}
    machines = Machines(states, gpus, silent, dict.fromkeys(told, 30.0), lambda _: (View(), Vitals()))
    rows = [row for host in (*told, "gone") for row in tables.machine_rows(host, machines)]
    lines = tables.machines_table(rows, json=False, now=NOW, width=None)
    matches_golden("render/machines.txt", "\n".join(lines) + "\n")
    assert "\x1b" not in "".join(tables.machines_table(rows, json=True, now=NOW, width=80))
