"""The file that finds a task's rank in what an engine set: tables of their variables, and tasks that meet."""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.export import orchestrate_rank
from orchestrator.export.orchestrate_rank import RankedTask, RankError, expand, meet, variables
from tests.ports import free_ports

FILE = Path(orchestrate_rank.__file__)

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_TASKS_PER_NODE": "3,1(x2)",
}
POD = ["--hosts", "127.0.0.9,127.0.0.[1-2]", "--roles", "chief=1,worker=2"]


def made(env: dict[str, str], *words: str) -> dict[str, str]:
    parser = argparse.ArgumentParser()
    for name in ("hosts", "role", "meet"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--roles", default="")
    parser.add_argument("--port", type=int)
    parser.add_argument("--wait", type=float, default=5)
    return variables(env, parser.parse_args(words))


@pytest.mark.parametrize(
    ("env", "words", "rank", "local", "hosts"),
    [
        (
            {"ORCHESTRATE_RANK": "1", "ORCHESTRATE_SIZE": "2", "ORCHESTRATE_HOSTS": "a:1,[fd00::7]:2"},
            [],
            1,
            0,
            "a:1,[fd00::7]:2",
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "m"},
            [],
            1,
            1,
            "127.0.0.1:2222,127.0.0.1:2223",
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "SLURM_PROCID": "0",  # of the daemon that mpirun started with srun
                "SLURM_STEP_NUM_TASKS": "1",
            },
            ["--port", "9000"],
            0,
            0,
            "127.0.0.1:9000,127.0.0.1:9001",
        ),
        (
            {**STEP, "SLURM_PROCID": "2", "SLURMD_NODENAME": "n1", "SLURM_DISTRIBUTION": "block"},
            [],
            2,
            2,
            "n1:10576,n1:10577,n1:10578,n2:10576,n3:10576",
        ),
        (
            {**STEP, "SLURM_PROCID": "3", "SLURMD_NODENAME": "n1", "SLURM_DISTRIBUTION": "cyclic"},
            ["--port", "3000"],
            3,
            1,
            "n1:3000,n2:3000,n3:3000,n1:3001,n1:3002",
        ),
        (
            {"JOB_COMPLETION_INDEX": "1"},
            [*POD, "--role", "worker"],
            2,
            0,
            "127.0.0.9:2222,127.0.0.1:2222,127.0.0.2:2222",
        ),
        ({"JOB_COMPLETION_INDEX": "0"}, ["--hosts", "localhost"], 0, 0, "localhost:2222"),
    ],
    ids=["orchestrate", "torchrun", "mpirun", "srun", "srun cyclic", "Kubernetes", "one pod"],
)
def test_each_engine_tells_rank_and_hosts(
    env: dict[str, str], words: list[str], rank: int, local: int, hosts: str
) -> None:
    env = made(env, *words)
    assert env["ORCHESTRATE_RANK"] == env["RANK"] == env["JAX_PROCESS_ID"] == str(rank)
    assert env["ORCHESTRATE_LOCAL_RANK"] == env["LOCAL_RANK"] == str(local)
    assert env["ORCHESTRATE_HOSTS"] == env["KERAS_DISTRIBUTION_JOB_ADDRESSES"] == hosts
    assert env["ORCHESTRATE_SIZE"] == env["WORLD_SIZE"] == str(len(hosts.split(",")))
    assert env["JAX_COORDINATOR_ADDRESS"] == hosts.split(",", maxsplit=1)[0]
    assert ("TF_CONFIG" in env) is ("," in hosts)


def test_ranks_become_roles_and_hosts_become_nodes() -> None:
    env = made(
        {**STEP, "SLURM_PROCID": "4", "SLURMD_NODENAME": "n3"},
        *("--port", "1", "--roles", "chief=1,ps=1,worker=2,evaluator=1"),
    )
    cluster = {"chief": ["n1:1"], "ps": ["n1:2"], "worker": ["n1:3", "n2:1"]}
    assert json.loads(env["TF_CONFIG"]) == {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}
    assert (env["PET_NNODES"], env["PET_NODE_RANK"], env["GROUP_RANK"]) == ("3", "2", "2")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["LOCAL_WORLD_SIZE"]) == ("n1", "1", "1")


def test_what_torchrun_set_stays() -> None:
    theirs = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "m", "MASTER_PORT": "29500", "LOCAL_RANK": "0"}
    assert {name: made(theirs)[name] for name in theirs} == theirs


@pytest.mark.parametrize(
    ("env", "words", "word"),
    [
        ({}, [], "JOB_COMPLETION_INDEX"),
        ({"RANK": "1"}, [], "nothing here sets a rank"),
        ({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, [], "srun"),  # a batch file's own
        ({"RANK": "x", "WORLD_SIZE": "2"}, [], "RANK='x'"),
        ({"RANK": "2", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, [], "rank 2 of 2"),
        ({"RANK": "0", "WORLD_SIZE": "3"}, ["--hosts", "localhost,localhost"], "rank 0 of 3, for 2 hosts"),
        ({"JOB_COMPLETION_INDEX": "3"}, ["--hosts", "localhost,localhost"], "rank 3 of 2"),
        ({"JOB_COMPLETION_INDEX": "0"}, ["--hosts", "a,b", "--roles", "worker=3"], "worker=3"),
        ({"JOB_COMPLETION_INDEX": "0"}, ["--hosts", "a,b", "--roles", "master=2"], "master=2"),
        ({**STEP, "SLURM_PROCID": "1", "SLURMD_NODENAME": "n2"}, [], "--distribution=block"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ["--meet", "nowhere"], "nowhere"),
        ({"JOB_COMPLETION_INDEX": "0"}, ["--hosts", "no.invalid", "--wait", "0"], "no.invalid"),
    ],
)
def test_variables_that_do_not_fit_are_refused(env: dict[str, str], words: list[str], word: str) -> None:
    with pytest.raises(RankError) as refused:
        made(env, *words)
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12],login", ["n08", "n09", "n10", "n12", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("[fd00::7]:22,a:[1-2]", ["[fd00::7]:22", "a:1", "a:2"]),
        ("", []),
    ],
)
def test_lists_of_hosts_are_expanded(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("by", ["folder", "address"])
def test_tasks_meet_whatever_comes_first_and_leave_nothing(by: str, tmp_path: Path) -> None:
    place = str(tmp_path) if by == "folder" else f"localhost:{free_ports(1)[0]}"
    deadline = time.monotonic() + 30
    with ThreadPoolExecutor(4) as pool:
        late = [
            pool.submit(meet, RankedTask("mpirun", rank, 4), place, "job", deadline) for rank in (3, 1, 2)
        ]
        first = meet(RankedTask("mpirun", 0, 4), place, "job", deadline)
        assert [task.result() for task in late] == [first] * 3
    assert len(set(first)) == 1
    assert list(tmp_path.iterdir()) == []


def test_tasks_that_do_not_meet_are_named_in_time(tmp_path: Path) -> None:
    for rank, word in ((0, "1, 2"), (1, "rank 1")):
        with pytest.raises(RankError, match=word):
            meet(RankedTask("mpirun", rank, 3), str(tmp_path), "job", time.monotonic() + 0.2)
    assert list(tmp_path.iterdir()) == []


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command: list[Any] = [sys.executable, FILE, *words]
    path = {"PATH": os.environ["PATH"]}
    return subprocess.run(command, env={**path, **env}, capture_output=True, text=True, check=False)


def test_it_becomes_the_program_or_says_in_one_line_why_not() -> None:
    env = {"JOB_COMPLETION_INDEX": "0"}
    code = "import os, sys; print(os.environ['RANK'], sys.argv[1:]); sys.exit(3)"
    done = run("--hosts", "localhost,localhost", "--", sys.executable, "-c", code, "--", "x", **env)
    assert (done.stdout, done.stderr, done.returncode) == ("0 ['--', 'x']\n", "", 3)
    for words in (
        ["--hosts", "localhost"],
        ["--hosts", "localhost", "--", "/no/such/program"],
        ["--", "true"],
    ):
        done = run(*words, **env)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_it_is_one_file_of_the_standard_library_of_python_3_8() -> None:
    tree = ast.parse(FILE.read_text(), feature_version=(3, 8))
    modules = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    }
    assert modules <= {*sys.stdlib_module_names, "__future__"}
