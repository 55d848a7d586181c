"""preflight's questions to agents of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.connectors import connectors
from orchestrator.events import CheckReported, Level
from orchestrator.fleet import Fleet
from orchestrator.model import Host
from orchestrator.phases.mend import mend
from orchestrator.phases.preflight import examine
from orchestrator.store.bus import Bus
from tests.ports import free_port
from tests.unit import plans


def test_hosts_that_see_one_workdir_are_a_group_led_by_the_first(tmp_path: Path) -> None:
    def host(name: str, workdir: str) -> Host:
        return Host(
            name,
            "local",
            "127.0.0.1",
            python=sys.executable,
            agent_python=sys.executable,
            workdir=str(tmp_path / workdir),
            state=str(tmp_path / name),
            task_port=free_port(),
        )

    plan = plans.make(host("a", "home"), host("b", "home"), host("c", "own"), command=("true",))
    fleet = Fleet(connectors(), lambda _frame: None)
    try:
        assert fleet.connect(plan.hosts, lambda _host, _seconds: None) == {}
        found = examine(fleet, Bus(), plan)
    finally:
        fleet.close()
    assert found.shared == {"a": "a", "b": "a"}
    assert {check.host: check.found for check in found.checks if check.check == "shared"} == {
        "a": "workdir of a,b",
        "b": "workdir of a,b",
    }


def test_what_findings_propose_is_done_once_and_told(tmp_path: Path) -> None:
    """A command that fails is told with its last words; what is well or has no command is left alone."""
    host = Host("a", "local", "127.0.0.1", agent_python=sys.executable, state=str(tmp_path / "state"))
    made = str(tmp_path / "made")
    fails = ("sh", "-c", "echo 'no such package' >&2; exit 3")

    def check(level: Level, *fix: str) -> CheckReported:
        return CheckReported("a", "import", level, "broken", fix=fix)

    started: list[tuple[str, str]] = []
    fleet = Fleet(connectors(), lambda _frame: None)
    try:
        assert fleet.connect([host]) == {}
        checks = [
            check(Level.FAIL, "mkdir", made),
            check(Level.FAIL, "mkdir", made),
            check(Level.OK, "rmdir", made),
            check(Level.FAIL),
            check(Level.WARN, *fails),
        ]
        done = mend(fleet, checks, lambda name, command: started.append((name, command)))
    finally:
        fleet.close()
    assert [(one.command.partition(" ")[0], one.error) for one in done] == [
        ("mkdir", ""),
        ("sh", "no such package"),
    ]
    assert [command for _, command in started] == [one.command for one in done]
    assert (tmp_path / "made").is_dir()
