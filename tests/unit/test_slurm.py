"""Interpretation of Slurm's variables and output; tests/slurm has a real Slurm."""

import os
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator import slurm
from orchestrator.errors import HostError, UsageError
from orchestrator.fleet import Fleet
from orchestrator.model import Host, Inventory, Order, Role, Way
from orchestrator.names import RunId
from orchestrator.phases.context import Run
from orchestrator.phases.loop import Loop
from orchestrator.planning import selection
from orchestrator.store import RunFolder
from orchestrator.store.bus import Bus
from tests.unit.plans import make

SCONTROL = """#!/bin/sh
case "$*" in
    *"show job"*) cat job ;;
    *"show node"*) cat node ;;
esac
"""
MUTE = "#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n"
RUNNING = "JobId=7 JobState=RUNNING RunTime=00:01:00 TimeLimit=1-00:00:00 EndTime=Unknown NodeList=n[1-2]"
NODES = "NodeName=n1 NodeAddr=192.0.2.1 State=MIXED\nNodeName=n2 NodeAddr=192.0.2.2 State=MIXED\n"


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with fake Slurm commands that print files."""
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "job").write_text(RUNNING)
    (tmp_path / "node").write_text(NODES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "tasks"),
    [
        ({}, [1, 1]),
        ({"SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "3,1"}, [3, 1]),
        ({"SLURM_TASKS_PER_NODE": "48(x2)"}, [1, 1]),  # cores, if no number of tasks was requested
    ],
)
@pytest.mark.usefixtures("words")
def test_tasks_of_nodes(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], tasks: list[int]) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = slurm.allocation("7")
    assert [node["tasks"] for node in found] == tasks
    assert [node["address"] for node in found] == ["192.0.2.1", "192.0.2.2"]
    assert found[0]["task_port"] != slurm.allocation("8")[0]["task_port"]


@pytest.mark.parametrize(
    ("job", "over"),
    [
        ("JobState=RUNNING", ""),
        ("JobState=CANCELLED Reason=None", "Slurm job 7 was cancelled (scancel)"),
        ("JobState=TIMEOUT TimeLimit=00:01:00", "Slurm job 7 reached its time limit (00:01:00)"),
        (
            "JobState=COMPLETING RunTime=00:01:02 TimeLimit=00:01:00",
            "Slurm job 7 was cancelled (scancel), preempted, or at its time limit",
        ),
    ],
)
def test_ends_of_jobs(words: Path, job: str, over: str) -> None:
    (words / "job").write_text(f"JobId=7 {job} NodeList=n[1-2]\n")
    assert slurm.look("7", ["n1", "n2"]).over == over


def test_lost_nodes_of_a_job(words: Path) -> None:
    (words / "node").write_text(
        NODES.replace("192.0.2.2 State=MIXED", "x State=DOWN*+DRAIN Reason=a fan [root@now]")
        + "NodeName=n3 State=IDLE\n"
    )
    assert slurm.look("7", ["n1", "n2", "n3"]).down == {
        "n2": "n2 is DOWN*+DRAIN in Slurm (a fan [root@now])",
        "n3": "Slurm took n3 out of job 7",
    }


def test_an_unresponsive_slurm_ends_nothing(words: Path) -> None:
    (words / "scontrol").write_text(MUTE)
    assert slurm.look("7", ["n1"]) == slurm.Fate()
    with pytest.raises(UsageError, match="does not answer"):
        slurm.allocation("7")


def test_a_finished_job_stays_finished_if_slurm_stops_responding(words: Path) -> None:
    plan = make(Host("n1", "n1", "n1", via=Way.SRUN, job="7"))
    fleet = Fleet(cast("Any", None), lambda _: None)
    run = Run(RunFolder(words, RunId("r1")), plan, Bus().emit, fleet, Loop(), "me", None)
    assert run.allocation().over == ""
    (words / "job").write_text("JobId=7 JobState=TIMEOUT TimeLimit=00:01:00 NodeList=n[1-2]\n")
    over = "Slurm job 7 reached its time limit (00:01:00)"
    assert run.allocation(now=True).over == over
    (words / "scontrol").write_text(MUTE)
    assert run.allocation(now=True).over == over


def test_srun_gets_no_arguments_it_could_take_for_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"SLURM_MEM_PER_CPU": "1", "SLURM_GPUS_PER_TASK": "1", "SLURM_JOB_ID": "7", "SLURM_CONF": "c"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    left = {name for name in slurm.environment() if name in given}
    assert left == {"SLURM_JOB_ID", "SLURM_CONF"}


def test_error_output_of_srun_becomes_the_host_s_error() -> None:
    host = Host("n1", "n1", "n1", via=Way.SRUN, job="7")
    error = slurm.explain(host, b"srun: warning: x\nsrun: error: Slurm job 7 has expired\n")
    assert isinstance(error, HostError)
    assert error.why == "Slurm job 7 has expired"
    assert slurm.explain(host, b"the program's own words") is None


def test_a_request_to_a_keeper_on_another_machine_is_a_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, RunId("20261124-231508-zu8c"))
    folder.path.mkdir()
    os.close(folder.open_control())
    assert not folder.ask_keeper(Order.STOP)  # it has no keeper
    lock = folder.take_lock()  # as on the other machine: its FIFO has no reader here
    assert lock is not None
    assert folder.ask_keeper(Order.KILL)
    assert folder.take_order() == b'{"want": "kill"}'
    assert folder.take_order() == b""


def test_the_last_workers_are_spares() -> None:
    hosts = tuple(Host(name, name, name) for name in ("n1", "n2", "n3"))
    others = (Host("n4", "n4", "n4", role=Role.CHIEF), Host("n5", "n5", "n5", spare=True))
    spares = selection.stand_by(Inventory((*hosts, *others)), 2).hosts
    assert [host.name for host in spares if host.spare] == ["n2", "n3", "n5"]
    with pytest.raises(UsageError):
        selection.stand_by(Inventory(hosts), 3)
