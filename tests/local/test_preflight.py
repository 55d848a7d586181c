"""preflight's questions to agents of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.connectors import connectors
from orchestrator.fleet import Fleet
from orchestrator.model import Host
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
