"""The file that finds a task's rank in the variables of an engine."""

import argparse
import ast
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator import orchestrate_rank
from orchestrator.orchestrate_rank import variables
from tests.golden import matches_golden
from tests.processes import called

FILE = Path(orchestrate_rank.__file__)
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_TASKS_PER_NODE": "3,1(x2)",
}
NODES = "n1:10576,n1:10577,n1:10578,n2:10576,n3:10576"
POD = {"hosts": "127.0.0.9,127.0.0.[1-2]", "roles": "chief=1,worker=2", "port": 7}
PMIX = {"PMIX_NAMESPACE": "slurm.pmix.7.2", "PMIX_RANK": "4"}
PRTE = {"PMIX_NAMESPACE": "prterun-n1-9@1", "PMIX_RANK": "1"}
# The Slurm step belongs to mpirun's daemon.
MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3", "SLURM_PROCID": "1", "PMIX_RANK": "0"}
OURS = {"ORCHESTRATE_RANK": "1", "ORCHESTRATE_SIZE": "2", "ORCHESTRATE_HOSTS": "a:1,[fd00::7]:2"}
THREE = "a:2222,b:2222,c:2222"


def made(env: dict[str, str], options: dict[str, Any]) -> dict[str, str]:
    usual = {"hosts": "", "roles": "", "first": 0, "port": None, "wait": 5}
    return variables(env, argparse.Namespace(**(usual | options)))


@pytest.mark.parametrize(
    ("env", "options", "rank", "local", "hosts"),
    [
        (OURS, {}, 1, 0, "a:1,[fd00::7]:2"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, {"hosts": "a,a"}, 1, 1, "a:2222,a:2223"),
        (MPI, {"hosts": "a,b,c"}, 0, 0, THREE),
        ({**STEP, "SLURM_PROCID": "2", "SLURMD_NODENAME": "n1"}, {}, 2, 2, NODES),
        ({**STEP, **PMIX, "SLURM_PROCID": "4"}, {"port": 9}, 4, 0, "n1:9,n1:10,n1:11,n2:9,n3:9"),
        ({**PRTE, **STEP, "SLURM_PROCID": "0"}, {"hosts": "a,b,c"}, 1, 0, THREE),
        ({"JOB_COMPLETION_INDEX": "1"}, {**POD, "first": 1}, 2, 0, "127.0.0.9:7,127.0.0.1:7,127.0.0.2:7"),
    ],
    ids=["orchestrate", "torchrun", "mpirun", "srun", "srun with PMIx", "PMIx", "Kubernetes"],
)
def test_rank_and_hosts_are_read_from_each_engine(
    env: dict[str, str], options: dict[str, Any], rank: int, local: int, hosts: str
) -> None:
    env = made(env, options)
    assert env["ORCHESTRATE_RANK"] == env["RANK"] == env["JAX_PROCESS_ID"] == str(rank)
    assert env["ORCHESTRATE_LOCAL_RANK"] == env["LOCAL_RANK"] == str(local)
    assert env["ORCHESTRATE_HOSTS"] == env["KERAS_DISTRIBUTION_JOB_ADDRESSES"] == hosts
    assert env["ORCHESTRATE_SIZE"] == env["WORLD_SIZE"] == str(len(hosts.split(",")))
    assert env["JAX_COORDINATOR_ADDRESS"] == hosts.split(",", maxsplit=1)[0]


def test_ranks_become_roles_and_hosts_become_nodes() -> None:
    text = ""
    for proc, node, roles in (
        ("4", "n3", "chief=1,ps=1,worker=3"),
        ("4", "n3", "worker=2,service=2,evaluator=1"),
        ("3", "n2", "worker=2,service=2,evaluator=1"),
    ):
        env = made({**STEP, "SLURM_PROCID": proc, "SLURMD_NODENAME": node}, {"port": 1, "roles": roles})
        text += f"{proc} of {roles}\n" + "".join(f"  {name}={value}\n" for name, value in env.items())
    matches_golden("environment/ranks.txt", text)


def test_variables_set_by_torchrun_are_kept() -> None:
    theirs = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "m", "MASTER_PORT": "9", "LOCAL_RANK": "0"}
    assert {name: made(theirs, {})[name] for name in theirs} == theirs


@pytest.mark.parametrize(
    ("env", "options", "word"),
    [
        ({}, {}, "JOB_COMPLETION_INDEX"),
        ({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, {}, "srun"),  # in a batch file
        (PRTE, {}, "PMIX_RANK and --hosts or --roles"),
        (MPI, {}, "mpirun does not list the hosts: pass --hosts"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, {}, "torchrun does not list the hosts: pass --hosts"),
        ({"RANK": "0", "WORLD_SIZE": "3"}, {"hosts": "localhost,localhost"}, "rank 0 of 3, for 2 hosts"),
        ({"JOB_COMPLETION_INDEX": "0"}, {"hosts": "a,b", "roles": "worker=3"}, "worker=3"),
        ({**STEP, "SLURM_PROCID": "1", "SLURMD_NODENAME": "n2"}, {}, "--distribution=block"),
        ({"JOB_COMPLETION_INDEX": "0"}, {"hosts": "no.invalid", "wait": 0}, "no.invalid"),
    ],
)
def test_inconsistent_variables_are_refused(env: dict[str, str], options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError) as refused:
        made(env, options)
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)


def test_it_executes_the_program_or_prints_a_one_line_error() -> None:
    def run(*words: str) -> tuple[str, int, int]:
        command: list[Any] = [sys.executable, FILE, *words]
        env = {"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": "0"}
        done = called(command, env=env)
        return done.stdout, done.stderr.count("\n"), done.returncode

    code = "import os, sys; print(os.environ['RANK'], sys.argv[1:]); sys.exit(3)"
    program = (sys.executable, "-c", code, "--", "x")
    assert run("--hosts", "localhost,localhost", "--", *program) == ("0 ['--', 'x']\n", 0, 3)
    for line in ("--hosts localhost", "--hosts localhost -- /no/such/program", "-- true"):
        assert run(*line.split()) == ("", 1, 2)


@pytest.mark.parametrize("unset", ["", "OMPI_COMM_WORLD_RANK"], ids=["mpirun", "PMIx alone"])
def test_tasks_of_mpirun_have_a_rank(unset: str, tmp_path: Path) -> None:
    if not shutil.which("mpirun"):
        assert not os.environ.get("CI"), "mpirun is part of CI: scripts/setup tests"
        pytest.skip("there is no mpirun (openmpi-bin)")
    show = "import os, sys; sys.stdout.write(os.environ['RANK'] + os.environ['TF_CONFIG'] + '\\n')"
    rank = [sys.executable, str(FILE), "--hosts", "localhost,localhost,localhost"]
    script = f'unset {unset or "NOTHING"}; exec "$@"'
    words = ["--allow-run-as-root", "--oversubscribe", "-np", "3", "sh", "-c", script, "sh", *rank]
    command = ["mpirun", *words, "--", sys.executable, "-c", show]
    done = called(command, cwd=tmp_path, timeout=60)
    tasks = sorted(done.stdout.splitlines())
    assert [line[0] for line in tasks] == ["0", "1", "2"], done
    configs = [json.loads(line[1:]) for line in tasks]
    assert [config["task"]["index"] for config in configs] == [0, 1, 2]
    assert len({json.dumps(config["cluster"]) for config in configs}) == 1
    assert list(tmp_path.iterdir()) == []


def test_orchestrate_rank_needs_only_python_3_8() -> None:
    nodes = list(ast.walk(ast.parse(FILE.read_text(), feature_version=(3, 8))))
    modules = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
    assert modules <= {*sys.stdlib_module_names, "__future__"}
