"""Transfers with hosts that are this machine: shared disks, sent data, and pulled files."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.connectors import Connectors
from orchestrator.events import DataPlaced, Event
from orchestrator.fleet import Fleet
from orchestrator.model import Host
from orchestrator.node.disk.below import Below
from orchestrator.node.disk.listing import Entry
from orchestrator.phases.data import bring
from orchestrator.phases.preflight import examine
from orchestrator.store.bus import Bus
from orchestrator.sync import pull
from orchestrator.sync.contents import DataPath, read_data
from tests.ports import free_port
from tests.unit import plans


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with closing(Fleet(Connectors(), lambda _: None)) as made:
        yield made


def here(folder: Path, name: str, workdir: str) -> Host:
    return Host(
        name,
        "local",
        "127.0.0.1",
        python=sys.executable,
        agent_python=sys.executable,
        workdir=str(folder / workdir),
        state=str(folder / name),
        task_port=free_port(),
    )


def test_hosts_that_see_one_workdir_are_a_group_led_by_the_first(tmp_path: Path, fleet: Fleet) -> None:
    hosts = [here(tmp_path, name, workdir) for name, workdir in (("a", "home"), ("b", "home"), ("c", "own"))]
    plan = plans.make(*hosts, command=("true",))
    assert fleet.connect(plan.hosts) == {}
    assert examine(fleet, Bus().emit, plan).shared == {"a": "a", "b": "a"}
    assert list(tmp_path.glob("*/.share-*")) == []


def test_hosts_sharing_a_disk_that_got_no_data_have_none(tmp_path: Path, fleet: Fleet) -> None:
    source = tmp_path / "numbers"
    source.write_text("1 2 3")
    dataset = read_data([DataPath("files/numbers", source)])
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "data").touch()  # in the way
    hosts = [here(tmp_path, name, "work") for name in ("one", "two")]
    events: list[Event] = []
    assert fleet.connect(hosts) == {}
    placed, bad = bring(fleet, hosts, dataset, events.append, run="push")
    assert placed == {}
    assert [event for event in events if isinstance(event, DataPlaced)] == []
    assert bad["two"].in_one_line.startswith("shares the disk of one, which did not get the data")
    assert bad["one"].hint == bad["two"].hint


def test_the_next_pull_replaces_the_files_of_an_interrupted_one(
    tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, to = tmp_path / "work", tmp_path / "mine"
    work.mkdir()
    for name in ("a", "b", "c"):
        (work / name).write_text("one")
    place = pull.Taking._place

    def interrupted(self: pull.Taking, new: Below, one: Entry, name: str) -> None:
        if name == "b":
            raise KeyboardInterrupt
        place(self, new, one, name)

    assert fleet.connect([here(tmp_path, "one", "work")]) == {}
    session = fleet.sessions["one"]

    def take() -> int:
        parts = pull.choose(session, str(work), [])
        return pull.take(session, parts, to, "run-1", lambda _: None).files

    with monkeypatch.context() as patch:
        patch.setattr(pull.Taking, "_place", interrupted)
        with pytest.raises(KeyboardInterrupt):
            take()
    assert (to / "a").read_text() == "one"
    (work / "a").write_text("the next checkpoint")
    assert take() == 3
    assert (to / "a").read_text() == "the next checkpoint"
    assert not [path for path in to.iterdir() if ".incoming-" in path.name]
