"""A run folder that an earlier version wrote, before plans bore a seal, is used like any other."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.errors import ExitStatus
from orchestrator.events import RunEnded
from orchestrator.model import Inventory
from orchestrator.planning.seal import opened
from orchestrator.planning.takeover import Telling, adopt, incoherent, join
from orchestrator.store import RunFolder, find
from orchestrator.store.planfile import decode_plan
from orchestrator.store.prune import prune
from orchestrator.store.reader import events_of

OLD = Path(__file__).parent / "old_run"
RUN = "20261122-025218-26d3"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(OLD / RUN, tmp_path / "orchestrate" / "runs" / RUN)
    found = find(RUN)
    assert found is not None
    return found


def test_its_plan_is_read(folder: RunFolder) -> None:
    plan = folder.read_plan()
    assert plan.run == RUN
    assert not plan.hearsay
    assert plan.hosts[0].ssh_config == "~/.ssh/cluster_config"
    assert plan.restarts.most == 2


@pytest.mark.usefixtures("folder")
def test_it_is_tailed_and_stopped(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tail", RUN]) == ExitStatus.OK
    shown = capfd.readouterr().out
    assert "worker/1 node-2 | hello from worker" in shown
    assert main(["tail", "old", "--json"]) == ExitStatus.OK
    assert '"RunEnded"' in capfd.readouterr().out
    assert main(["stop", RUN]) == ExitStatus.OK
    assert "is over already: succeeded" in capfd.readouterr().err
    assert main(["runs"]) == ExitStatus.OK
    assert "old" in capfd.readouterr().out


def test_it_is_cleaned(folder: RunFolder, tmp_path: Path) -> None:
    for path in (*folder.path.rglob("*"), folder.path):
        os.utime(path, (1.0, 1.0))
    gone = prune((), (), older=86_400.0, keep_bytes=None, dry=False, root=tmp_path / "orchestrate" / "runs")
    assert gone.gone == (RUN,)
    assert not folder.path.exists()


def test_what_a_node_kept_of_it_bears_no_seal(folder: RunFolder) -> None:
    sealed = opened((OLD / "as-on-node-1.json").read_text(), bytes(32))
    plan = decode_plan(sealed.plan)
    assert not sealed.authentic
    assert not incoherent(plan)
    hosts = tuple(replace(host, ssh_config=None) for host in folder.read_plan().hosts)
    (known,) = join(Telling(host.name, plan, sealed.authentic, goes_on=True, started=True) for host in hosts)
    taken = adopt(known, Inventory(hosts), [host.name for host in hosts])
    assert taken.hearsay
    assert taken.hosts == hosts
    assert any(isinstance(stamped.event, RunEnded) for stamped in events_of(folder))
