"""Data on its way to hosts that are this machine."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from orchestrator.connectors import connectors
from orchestrator.events import DataPlaced, Event
from orchestrator.fleet import Fleet
from orchestrator.model import Host
from orchestrator.phases.data import bring
from orchestrator.phases.transfer import TransferOptions
from orchestrator.sync import DataPath, read_data


def test_who_shares_the_disk_of_a_host_that_got_nothing_has_nothing(tmp_path: Path) -> None:
    source, workdir = tmp_path / "numbers", tmp_path / "work"
    source.write_text("1 2 3")
    dataset = read_data([DataPath("files/numbers", source)], tmp_path / "cache")
    workdir.mkdir()
    (workdir / "data").touch()  # in the way
    hosts = [
        Host(
            name,
            "local",
            "127.0.0.1",
            agent_python=sys.executable,
            workdir=str(workdir),
            state=str(tmp_path / name),
        )
        for name in ("one", "two")
    ]
    events: list[Event] = []
    with closing(Fleet(connectors(), lambda _: None)) as fleet:
        assert fleet.connect(hosts) == {}
        placed, bad = bring(fleet, hosts, dataset, events.append, TransferOptions())
    assert placed == {}
    assert [event for event in events if isinstance(event, DataPlaced)] == []
    assert bad["two"].in_one_line.startswith("shares its disk with one, which did not get the data")
    assert bad["one"].hint == bad["two"].hint
