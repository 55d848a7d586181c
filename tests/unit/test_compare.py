"""The report of `runs --diff` on two runs with handmade folders."""

import json
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
from tests.golden import matches_golden
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
    points.take(progress, "1", 1e9)
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


OTHER_DRIVER = tuple(described(name, driver="560", memory=1 << 30) for name in ("gpu-1", "gpu-2"))
# For the second run: (its events, the differences from the first one)
ROWS: dict[str, tuple[tuple[ev.Event, ...], dict[str, Any]]] = {
    "a pace that is close": ((), {"pace": 10.9}),
    "a pace": ((), {"pace": 5.0}),
    "an option": ((), {"command": ("train.py",)}),
    "options of a launch": (
        (),
        {"asked": {"wait": True, "spares": 1, "max_restarts": 2, "hang_timeout": 60.0}},
    ),
    "a file": ((), {"code": CodeRecord({"train.py": "9", "new.py": "3"}, "c0ffee", "main", "x\n")}),
    "code that was never read": ((), {"code": CodeRecord(), "tree": "d0" * 16}),
    "a package": ((described("gpu-2", packages={"numpy": "1"}),), {}),
    "a lock": ((), {"environment": "1.14"}),
    "a driver": (OTHER_DRIVER, {}),
    "a host": ((), {"hosts": tuple(map(plans.host, ("gpu-1", "gpu-2", "gpu-3")))}),
    "environment": ((), {"env": {"A": "1", "MY_TOKEN": "hunter2"}}),
    "a secret": ((), {"secrets": ("WANDB",)}),
    "data": ((), {"data_digest": "d2", "data": SENT}),
}


def test_exactly_the_differences_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ""
    for name, (events, changes) in ROWS.items():
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))
        if "environment" in changes:
            changes = {"environment": lock(changes["environment"])}  # noqa: PLW2901
        found = differences([facts_of(folder(A)), facts_of(folder(B, *events, **changes))])
        text += f"{name}\n" + "".join(f"  {' | '.join(map(str, row))}\n" for row in found)
    assert "hunter2" not in text
    matches_golden("report/differences.txt", text)


def test_rehearsal_addresses_do_not_count_as_a_difference() -> None:
    hosts = (replace(plans.host("a"), address=f"127.0.0.{number}") for number in (2, 3))
    folders = [folder(run, hosts=(host,)) for run, host in zip((A, B), hosts, strict=True)]
    assert differences(list(map(facts_of, folders))) == []


def test_the_comparison_fits_one_screen_or_is_complete_json(capsys: pytest.CaptureFixture[str]) -> None:
    files = {f"f{number}.py": "1" for number in range(100)}
    folder(A, ended(ev.Outcome.SUCCEEDED))
    failed = ended(ev.Outcome.FAILED, ev.FailureKind.NAN)
    failed = msgspec.structs.replace(failed, cause="both tasks exited with 1: " * 9)
    folder(B, failed, command=("train.py", "\x1b[2J", "--rate", "1e-1"), code=CodeRecord(files=files))
    assert main(["runs", "--diff", "aaaa", "bbbb"]) == ExitStatus.OK
    out = capsys.readouterr().out
    assert len(out.splitlines()) < 24
    assert "\x1b" not in out
    found = differences([facts_of(RunFolder(runs_root(), run)) for run in (A, B)])
    for width in (50, 80):
        lines = shown((A, B), found, json=False, width=width)
        assert "" not in lines  # both runs are in one block
        assert max(map(len, lines)) <= width
    assert main(["runs", "--json", "--diff", A, B]) == ExitStatus.OK
    output = json.loads(capsys.readouterr().out)
    assert (output["a"], output["b"]) == (A, B)
    assert {"area": "outcome", "what": "kind", "a": "", "b": "nan"} in output["differences"]
    assert len([one for one in output["differences"] if one["area"] in ("code", "files")]) == 103
    assert main(["runs", "--diff", A, "cccc"]) == ExitStatus.USAGE
    RunFolder(runs_root(), A).plan.write_text("{}")
    assert main(["runs", "--diff", A, B]) == ExitStatus.USAGE
