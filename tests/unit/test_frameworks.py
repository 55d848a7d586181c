"""Which framework a program is of, and what the tasks of each are told of their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.export import common, orchestrate_rank
from orchestrator.frameworks import FRAMEWORKS, Standing, variables
from orchestrator.model import FrameworkName, Inventory, Job
from orchestrator.phases.preflight import needs
from orchestrator.program import choices
from orchestrator.requests import PreflightRequest
from orchestrator.verbs import preflight
from tests.golden import matches_golden
from tests.unit.plans import host, make

TF, TORCH, JAX = FrameworkName.TENSORFLOW, FrameworkName.TORCH, FrameworkName.JAX


@pytest.mark.parametrize(
    ("source", "name", "why"),
    [
        ("import tensorflow as tf", TF, "the program imports tensorflow"),
        ("import torch.nn as nn", TORCH, "the program imports torch"),
        ("import numpy  # import torch", TF, "nothing shows another framework"),
        # Of several it is the one that trains on several tasks; tf.data is what feeds many programs of JAX.
        ("import tensorflow, torch\ntf.distribute.MirroredStrategy()", TF, "the program imports tensorflow"),
        ("import tensorflow, jax\njax.distributed.initialize()", JAX, "the program imports jax"),
        ("import tensorflow as tf, torch", TF, "the program imports tensorflow and torch"),
        ('os.environ["KERAS_BACKEND"] = "torch"\nimport keras', TORCH, "KERAS_BACKEND is torch"),
        ('os.environ.setdefault("KERAS_BACKEND", "jax")\nimport keras', JAX, "KERAS_BACKEND is jax"),
        ('import keras\nos.environ["KERAS_BACKEND"] = "torch"', TF, "the program imports keras"),
        ('os.environ["KERAS_BACKEND"] = "jax"\nimport keras, tensorflow', JAX, "KERAS_BACKEND is jax"),
    ],
)
def test_a_program_shows_its_framework(source: str, name: FrameworkName, why: str) -> None:
    assert choices.choose_framework(("train.py",), (source,), {}) == (name, why)


@pytest.mark.parametrize(
    ("command", "source", "value", "name"),
    [
        ("train.py", "import keras", "torch", TORCH),
        ("train.py", 'os.environ.setdefault("KERAS_BACKEND", "torch")\nimport keras', "tensorflow", TF),
        ("train.py", 'os.environ["KERAS_BACKEND"] = "torch"\nimport keras', "tensorflow", TORCH),
        ("torchrun train.py", "", "", TORCH),
        ("python -m torch.distributed.run train.py", "", "", TORCH),
        ("bash -c torchrun\ntrain.py", "", "", TORCH),
        ("train.py --notes torchrunner", "", "", TF),
    ],
)
def test_the_environment_or_the_command_shows_it(
    command: str, source: str, value: str, name: FrameworkName
) -> None:
    env = {"KERAS_BACKEND": value} if value else {}
    assert choices.choose_framework(command.split(" "), (source,), env)[0] is name


@pytest.mark.parametrize("name", [TORCH, JAX])
def test_what_a_task_is_told(name: FrameworkName) -> None:
    """Of PyTorch it sees all devices of its host, as under torchrun; of JAX it takes all that it sees."""
    hosts = host("fd00::5", tasks=2, devices=("0", "1"), task_port=3000), host("b", devices=("0",))
    plan = make(*hosts, job=Job(framework=name), command=("train.py",))
    tasks = ("".join(f"{key}={value}\n" for key, value in task.env.items()) for task in plan.tasks[1:])
    matches_golden(f"environment/{name}.txt", "\n".join(tasks))


def test_hosts_that_a_framework_or_its_launcher_cannot_have_are_refused() -> None:
    with pytest.raises(UsageError, match="a has the role chief, and the program's framework is PyTorch"):
        make(host("a", "chief"), host("b"), command=("t.py",), sources=("import torch",))
    with pytest.raises(UsageError, match="a has 2 tasks, and the command starts the processes of a host"):
        make(host("a", tasks=2), command=("torchrun", "t.py"))


def test_preflight_goes_by_the_framework_or_the_program_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch")
    for job in (Job(framework=TORCH), Job(command=("train.py",))):
        assert needs(preflight.everything(PreflightRequest(Inventory((host("a"),), job)))).framework is TORCH


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
