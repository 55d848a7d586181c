"""Which framework a program is of, and what the tasks of each are told of their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli import preflight
from orchestrator.errors import UsageError
from orchestrator.export import common, orchestrate_rank
from orchestrator.frameworks import FRAMEWORKS, Standing, variables
from orchestrator.model import FrameworkName, Host, Inventory, Job
from orchestrator.phases.preflight import needs
from orchestrator.program import framework
from tests.unit.plans import host, make

TF, TORCH, JAX = FrameworkName.TENSORFLOW, FrameworkName.TORCH, FrameworkName.JAX


@pytest.mark.parametrize(
    ("source", "name", "why"),
    [
        ("import tensorflow as tf", TF, ""),
        ("import torch.nn as nn", TORCH, "the program imports torch"),
        ("print 'python 2'\nimport torch", TORCH, "the program imports torch"),
        ("import numpy", TF, ""),
        ("# import torch", TF, ""),
        ("import lightning as L", TORCH, "the program imports lightning"),
        # Of several it is the one that trains on several tasks.
        ("import tensorflow as tf, torch\ntf.distribute.MirroredStrategy()", TF, ""),
        (
            "import tensorflow as tf, torch\ntorch.distributed.init_process_group()",
            TORCH,
            "the program imports torch",
        ),
        ("import tensorflow as tf, torch", TF, ""),
        ("import keras", TF, ""),
        (
            'import os\nos.environ["KERAS_BACKEND"] = "torch"\nimport keras',
            TORCH,
            "KERAS_BACKEND is torch",
        ),
        (
            'os.environ.setdefault("KERAS_BACKEND", "torch")\nfrom keras import layers',
            TORCH,
            "KERAS_BACKEND is torch",
        ),
        ('import keras\nos.environ["KERAS_BACKEND"] = "torch"', TF, ""),
        ('os.environ["KERAS_BACKEND"] = "tensorflow"\nimport keras', TF, ""),
        ("import jax.numpy as jnp", JAX, "the program imports jax"),
        # tf.data is what feeds many programs of JAX.
        ("import tensorflow as tf, jax\njax.distributed.initialize()", JAX, "the program imports jax"),
        (
            'os.environ["KERAS_BACKEND"] = "jax"\nimport keras, tensorflow as tf',
            JAX,
            "KERAS_BACKEND is jax",
        ),
    ],
)
def test_a_program_shows_its_framework(source: str, name: FrameworkName, why: str) -> None:
    assert framework.choose(("train.py",), (source,), {}) == (name, why)


@pytest.mark.parametrize(
    ("source", "value", "name"),
    [
        ("import keras", "torch", TORCH),
        ('os.environ.setdefault("KERAS_BACKEND", "torch")\nimport keras', "tensorflow", TF),
        ('os.environ["KERAS_BACKEND"] = "torch"\nimport keras', "tensorflow", TORCH),
        ("import numpy", "torch", TF),
    ],
)
def test_the_backend_of_keras_in_the_environment(source: str, value: str, name: FrameworkName) -> None:
    assert framework.choose(("train.py",), (source,), {"KERAS_BACKEND": value})[0] is name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("torchrun train.py", TORCH),
        ("/opt/bin/torchrun --standalone train.py", TORCH),
        ("python -m torch.distributed.run train.py", TORCH),
        ("bash -c torchrun\ntrain.py", TORCH),
        ("train.py --notes torchrunner", TF),
    ],
)
def test_a_command_shows_it(command: str, name: FrameworkName) -> None:
    assert framework.choose(command.split(" "), (), {})[0] is name


def env_of(*hosts: Host, name: FrameworkName, job: Job | None = None) -> list[dict[str, str]]:
    plan = make(*hosts, job=job or Job(framework=name), command=("train.py",))
    return [dict(task.env) for task in plan.tasks]


def test_what_a_task_of_torch_is_told() -> None:
    pair = host("fd00::5", tasks=2, devices=("0", "1"), task_port=3000), host("b", devices=("0",))
    _, second, third = env_of(*pair, name=TORCH)
    assert second == {
        "PYTHONUNBUFFERED": "1",
        "ORCHESTRATE_RANK": "1",
        "ORCHESTRATE_SIZE": "3",
        "ORCHESTRATE_LOCAL_RANK": "1",
        "ORCHESTRATE_HOSTS": "[fd00::5]:3000,[fd00::5]:3001,b:2222",
        "MASTER_ADDR": "fd00::5",
        "MASTER_PORT": "3000",
        "RANK": "1",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "PET_MASTER_ADDR": "fd00::5",
        "PET_MASTER_PORT": "3000",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "0",
        "PET_NPROC_PER_NODE": "2",
        # As under torchrun a task sees all devices of its host, and takes the one of its LOCAL_RANK.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    assert (third["RANK"], third["GROUP_RANK"], third["CUDA_VISIBLE_DEVICES"]) == ("2", "1", "0")


def test_what_a_task_of_jax_is_told() -> None:
    env = env_of(host("fd00::5", tasks=2, devices=("0", "1")), host("b"), name=JAX)[1]
    hosts = "[fd00::5]:2222,[fd00::5]:2223,b:2222"
    assert env == {
        "PYTHONUNBUFFERED": "1",
        "ORCHESTRATE_RANK": "1",
        "ORCHESTRATE_SIZE": "3",
        "ORCHESTRATE_LOCAL_RANK": "1",
        "ORCHESTRATE_HOSTS": hosts,
        "JAX_COORDINATOR_ADDRESS": "[fd00::5]:2222",
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "1",
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": hosts,
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "3",
        "KERAS_DISTRIBUTION_PROCESS_ID": "1",
        # A process of JAX takes all that it sees.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "1",
    }


@pytest.mark.parametrize(("devices", "processes"), [(None, "auto"), ((), "1"), (("4", "5"), "2")])
def test_processes_of_torchrun(devices: tuple[str, ...] | None, processes: str) -> None:
    (env,) = env_of(host("a", devices=devices), name=TORCH)
    assert env["PET_NPROC_PER_NODE"] == processes


def test_another_program_is_told_its_rank_alone() -> None:
    env = env_of(host("a"), host("b"), name=FrameworkName.NONE)[1]
    ours = {key for key in env if key.startswith("ORCHESTRATE_")}
    assert env.keys() - ours == {"PYTHONUNBUFFERED"}
    assert ours == {f"ORCHESTRATE_{key}" for key in ("RANK", "SIZE", "LOCAL_RANK", "HOSTS")}


def test_the_user_has_the_last_word() -> None:
    job = Job(framework=TORCH, env={"PET_NPROC_PER_NODE": "3"})
    assert env_of(host("a"), name=TORCH, job=job)[0]["PET_NPROC_PER_NODE"] == "3"


def test_what_was_taken_is_said_where_it_is_not_tensorflow() -> None:
    plan = make(host("a"), command=("train.py",), sources=("import torch",))
    assert plan.recipe.framework is TORCH
    assert plan.notes[0] == "PyTorch: the program imports torch; `framework` under [job] changes it"
    plan = make(host("a"), job=Job(framework=TF), command=("train.py",), sources=("import torch",))
    assert "TF_CONFIG" not in "".join(plan.notes)
    assert make(host("a"), job=Job(framework=TORCH)).recipe.framework is TF  # worker_entry is TensorFlow's


def test_a_role_is_of_tensorflow_alone() -> None:
    with pytest.raises(UsageError, match="a has the role chief, and the program's framework is PyTorch"):
        make(host("a", "chief"), host("b"), command=("t.py",), sources=("import torch",))


def test_preflight_goes_by_the_framework_or_the_program_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch")
    for job in (Job(framework=TORCH), Job(command=("train.py",))):
        assert needs(preflight.everything(Inventory((host("a"),), job))).framework is TORCH


def test_torchrun_starts_the_processes_of_a_host() -> None:
    with pytest.raises(UsageError, match="a has 2 tasks, and the command starts the processes of a host"):
        make(host("a", tasks=2), command=("torchrun", "t.py"))


def test_the_file_for_other_launchers_tells_the_same() -> None:
    """orchestrate_rank.py, for Slurm and Kubernetes, stands alone; the names are one contract."""
    hosts = [("a", 2222), ("a", 2223), ("[fd00::5]", 2222)]
    standing = Standing(1, (("a", 2222), ("a", 2223), ("fd00::5", 2222)), 1, 2, 0, 2, None)
    ours = {key: value for name in FRAMEWORKS for key, value in variables(name, standing).items()}
    assert orchestrate_rank.of_frameworks(1, hosts) == ours
    plan = make(host("a", "chief"), host("b", tasks=2), host("fd00::5", "ps"), host("d", "evaluator"))
    for rank, task in enumerate(plan.tasks):
        addresses = task.env["ORCHESTRATE_HOSTS"].split(",")
        config = orchestrate_rank.tf_config(rank, list(common.roles(plan).items()), addresses)
        assert config == task.env["TF_CONFIG"]
