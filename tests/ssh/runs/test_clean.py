"""`orchestrate clean` as a user types it: after a crash, next to a live run, with a silent host."""

import json
import os
import signal
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from tests.folders import age
from tests.ssh.runs.desk import FAMILY, Desk, Viewer, kill_all, until

pytestmark = pytest.mark.usefixtures("cleaning")
YEAR = 365 * 86_400.0


def clean(desk: Desk, *words: str) -> Viewer:
    viewer = desk.start("clean", "--hosts", str(desk.hosts), *words)
    viewer.wait()
    return viewer


def facts(viewer: Viewer) -> dict[str | None, dict[str, object]]:
    return {line["host"]: line for line in map(json.loads, viewer.stdout.splitlines())}


def family(desk: Desk) -> str:
    run = desk.detached("--", desk.script("t.py", FAMILY))
    until("both are up", lambda: desk.families_are_up(run, 2))
    return run


def crash(desk: Desk, run: str) -> None:
    """Kill all our processes at once, here and on the nodes; processes started by tasks survive."""
    kill_all([desk.keeper(run), *desk.machinery(run)])
    until("our own are gone", lambda: not desk.machinery(run))


def test_one_clean_removes_everything_after_a_crash(desk: Desk) -> None:
    run = family(desk)
    crash(desk, run)
    assert desk.task_pids(run)
    # The states are removed too: only the processes themselves still show their run.
    for host in desk.cluster.hosts:
        (Path(host.state or "") / "runs" / run).rename(desk.folder / f"gone-{host.name}")
    would = clean(desk, "--dry-run")
    assert would.process.returncode == ExitStatus.RUN_FAILED, would.stderr
    assert f"of run {run}: the run is over" in would.stdout
    assert "would kill" in would.stdout
    assert desk.task_pids(run)
    done = clean(desk)
    assert done.process.returncode == ExitStatus.OK, done.stdout + done.stderr
    assert "killed" in done.stdout
    assert "2 hosts: no process of an ended run is alive" in done.stdout
    desk.nothing_is_left(run)
    assert clean(desk).process.returncode == ExitStatus.OK


def test_old_folders_are_removed_and_working_folders_kept(desk: Desk) -> None:
    desk.launch("--", "touch", "checkpoint").ended()
    old = desk.run_id()
    desk.at_rest(old)
    folders = [desk.run_folder(old)]
    for host in desk.cluster.hosts:
        folders += [Path(host.state or "") / "runs" / old, Path(host.workdir) / "runs" / old]
    age(YEAR, *folders)
    desk.launch("--", "true").ended()
    done = clean(desk)
    assert done.process.returncode == ExitStatus.OK, done.stdout + done.stderr
    assert "working folders are kept" in done.stdout
    assert not folders[0].exists()
    assert not folders[1].exists()
    assert all((desk.node_work(host, old) / "checkpoint").exists() for host in desk.cluster.hosts)
    assert len(list(desk._runs())) == 1
    refused = clean(desk, "--work")
    assert refused.process.returncode == ExitStatus.USAGE
    assert "--yes" in refused.stderr
    assert all(desk.node_work(host, old).exists() for host in desk.cluster.hosts)
    assert clean(desk, "--work", "--yes").process.returncode == ExitStatus.OK
    assert not any(desk.node_work(host, old).exists() for host in desk.cluster.hosts)


def test_a_live_run_is_left_alone(desk: Desk) -> None:
    run = family(desk)
    before = set(desk.task_pids(run))  # more children may still be starting
    for host in desk.cluster.hosts:
        age(YEAR, Path(host.workdir))
    for keeper in ("kept", "unkept"):
        if keeper == "unkept":
            os.kill(desk.keeper(run), signal.SIGKILL)
            age(YEAR, desk.run_folder(run))
        done = clean(desk, "--older-than", "0", "--work", "--yes", "--json")
        assert done.process.returncode == ExitStatus.OK, done.stderr
        assert facts(done)[None]["going_on"] == [run]
        assert before <= set(desk.task_pids(run))
        assert all(desk.node_work(host, run).exists() for host in desk.cluster.hosts)
        assert all(list((Path(host.workdir) / "trees").iterdir()) for host in desk.cluster.hosts)
        assert desk.run_folder(run).exists()
    desk.start("stop", run, "--now").ended()
    desk.logs_are_identical(run)


def test_a_silent_host_does_not_block_cleaning_except_of_shared_files(desk: Desk) -> None:
    desk.launch("--", "true").ended()
    run, (first, second) = desk.run_id(), desk.cluster.hosts
    desk.at_rest(run)
    age(YEAR, *(Path(folder or "") for host in (first, second) for folder in (host.workdir, host.state)))
    age(YEAR, desk.run_folder(run))
    desk.kill_sshd(desk.cluster.servers[1])
    done = clean(desk)
    assert done.process.returncode == ExitStatus.CLUSTER
    assert f"{second.name} cannot be reached" in done.stdout
    assert f"error: {second.name}" in done.stderr
    assert not (Path(first.state or "") / "runs" / run).exists()
    assert list((Path(first.workdir) / "trees").iterdir())
    assert not desk.run_folder(run).exists()  # its end was recorded
