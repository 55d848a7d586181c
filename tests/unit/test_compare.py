"""What `runs --diff` tells of two runs, of folders made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from orchestrator import events as ev
from orchestrator.cli.main import main
from orchestrator.errors import ExitStatus
from orchestrator.model import Data, EnvironmentPlan, Host, Inventory
from orchestrator.names import RunId
from orchestrator.report.compare import differences, facts_of, shown
from orchestrator.requests import LaunchRequest
from orchestrator.store import RunFolder, runs_root
from orchestrator.store.bus import EventLog
from orchestrator.store.folder import CodeRecord
from orchestrator.store.known import write_lock
from orchestrator.store.points import PointFile
from tests.unit import plans

A, B = RunId("20261121-010203-aaaa"), RunId("20261122-010203-bbbb")
SENT = Data(paths=("x",))
STARTED = ev.TaskStarted("worker/0", "gpu-1", "1", 42)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def described(host: str, **changes: object) -> ev.HostDescribed:
    facts = ev.HostDescribed(host, "EPYC", 8, 32 << 30, "Linux 6.1", "550", ("A100",), {"numpy": "2.1"})
    return msgspec.structs.replace(facts, **changes)


def folder(
    run: RunId,
    *more: ev.Event,
    hosts: tuple[Host, ...] = (plans.host("gpu-1"), plans.host("gpu-2")),
    command: tuple[str, ...] = ("train.py", "--long-option-that-is-equal", "--rate", "1e-3"),
    env: dict[str, str] | None = None,
    code: CodeRecord = CodeRecord({"train.py": "1", "other.py": "2"}, "c0ffee", "main"),  # noqa: B008
    pace: float = 10.0,
    asked: dict[str, Any] | None = None,
    **changes: Any,
) -> RunFolder:
    made = RunFolder(runs_root(), run)
    plan = plans.make(*hosts, command=command, env=env or {})
    made.create(replace(plan, **{"run": str(run), "data_digest": "d1", **changes}))
    made.write_request(LaunchRequest(inventory=Inventory(hosts), **(asked or {})))
    log = EventLog(made)
    progress = ev.TaskProgressed("worker/0", 5, 0.5, pace)
    points = PointFile(made.points, 1)
    points.take(progress, "1", 1e9, 0, printed=False)
    points.write()
    for event in (*(described(host.name) for host in hosts), *more, STARTED):
        log(ev.Stamped(1e9, event))
    made.code.write_bytes(msgspec.json.encode(code))
    return made


def ended(outcome: ev.Outcome, kind: ev.FailureKind = ev.FailureKind.NONE) -> ev.RunEnded:
    return ev.RunEnded("r", outcome, 1, 61.0, "", "", (), "", kind=kind)


def lock(text: str) -> EnvironmentPlan:
    older = "scipy==1.10 ; python_full_version < '3.12' \\\n    --hash=sha256:00\n"
    write_lock(text, f"{older}scipy=={text} \\\n    --hash=sha256:00\n")
    return EnvironmentPlan(text)


ROWS: dict[str, tuple[Callable[[], RunFolder], set[tuple[str, str]]]] = {
    "a pace that is close": (lambda: folder(B, pace=10.9), set()),
    "a pace": (lambda: folder(B, pace=5.0), {("outcome", "steps a second")}),
    "an option": (lambda: folder(B, command=("train.py",)), {("options", "command")}),
    "options of a launch": (
        lambda: folder(B, asked={"wait": True, "spares": 1, "max_restarts": 2, "hang_timeout": 60.0}),
        {("options", name) for name in ("wait", "spares", "max_restarts", "hang_timeout")},
    ),
    "a file": (
        lambda: folder(B, code=CodeRecord({"train.py": "9", "new.py": "3"}, "c0ffee", "main", "x\n")),
        {("code", "not committed"), *(("files", name) for name in ("train.py", "other.py", "new.py"))},
    ),
    "code that was never read": (
        lambda: folder(B, code=CodeRecord(), tree="d0" * 16),
        {("code", "git"), ("code", "digest")},
    ),
    "a package": (lambda: folder(B, described("gpu-2", packages={"numpy": "1"})), {("packages", "numpy")}),
    "a lock": (lambda: folder(B, environment=lock("1.14")), {("packages", "scipy (lock)")}),
    "a driver": (
        lambda: folder(B, *(described(name, driver="560", memory=1 << 30) for name in ("gpu-1", "gpu-2"))),
        {("packages", "NVIDIA driver"), ("hosts", "memory")},
    ),
    "a host": (
        lambda: folder(B, hosts=(plans.host("gpu-1"), plans.host("gpu-2"), plans.host("gpu-3"))),
        {("options", "tasks"), ("hosts", "names"), ("hosts", "address")},
    ),
    "environment": (
        lambda: folder(B, env={"A": "1", "MY_TOKEN": "hunter2"}),
        {("environment", "A"), ("environment", "MY_TOKEN")},
    ),
    "a secret": (lambda: folder(B, secrets=("WANDB",)), {("environment", "WANDB")}),
    "data": (lambda: folder(B, data_digest="d2", data=SENT), {("data", "digest"), ("data", "x")}),
}


@pytest.mark.parametrize("what", ROWS)
def test_each_difference_is_told_and_nothing_else(what: str) -> None:
    make, expected = ROWS[what]
    found = differences(facts_of(folder(A)), facts_of(make()))
    assert {(area, name) for area, name, _, _ in found} == expected
    assert "hunter2" not in str(found)


def test_one_screen_or_all_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    files = {f"f{number}.py": "1" for number in range(100)}
    folder(A, ended(ev.Outcome.SUCCEEDED))
    failed = ended(ev.Outcome.FAILED, ev.FailureKind.NAN)
    failed = msgspec.structs.replace(failed, cause="both tasks exited with 1: " * 9)
    folder(B, failed, command=("train.py", "\x1b[2J", "--rate", "1e-1"), code=CodeRecord(files=files))
    assert main(["runs", "--diff", "aaaa", "bbbb"]) == ExitStatus.OK
    out = capsys.readouterr().out
    assert len(out.splitlines()) < 24
    assert "\x1b" not in out
    found = differences(facts_of(RunFolder(runs_root(), A)), facts_of(RunFolder(runs_root(), B)))
    for width in (50, 80):
        lines = shown((A, B), found, json=False, width=width)
        assert "" not in lines  # both runs are in one block
        assert max(map(len, lines)) <= width
    assert main(["runs", "--json", "--diff", A, B]) == ExitStatus.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["a"], told["b"]) == (A, B)
    assert {"area": "outcome", "what": "kind", "a": "", "b": "nan"} in told["differences"]
    assert len([one for one in told["differences"] if one["area"] in ("code", "files")]) == 103
    assert main(["runs", "--diff", A, "cccc"]) == ExitStatus.USAGE
    RunFolder(runs_root(), A).plan.write_text("{}")
    assert main(["runs", "--diff", A, B]) == ExitStatus.USAGE
