"""Which framework a program is of, and what the tasks of each are told of their place."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import orchestrate_rank
from orchestrator.errors import UsageError
from orchestrator.export import common
from orchestrator.frameworks import FRAMEWORKS, Standing, variables
from orchestrator.model import FrameworkName, Inventory, Job
from orchestrator.phases.preflight import needs
from orchestrator.program import choices
from orchestrator.requests import PreflightRequest
from orchestrator.verbs import preflight
from tests.golden import matches_golden
from tests.unit.plans import host, make

TF, TORCH, JAX = FrameworkName.TENSORFLOW, FrameworkName.TORCH, FrameworkName.JAX
UNKNOWN = FrameworkName.AUTO
NO_FRAMEWORK = "the program shows none, and no host trains alone first"


@pytest.mark.parametrize(
    ("source", "name", "why"),
    [
        ("import tensorflow as tf", TF, "the program imports tensorflow"),
        ("import torch.nn as nn", TORCH, "the program imports torch"),
        ("import numpy  # import torch", UNKNOWN, NO_FRAMEWORK),
        ("'''This does not import tensorflow.'''\nimport json, os", UNKNOWN, NO_FRAMEWORK),
        ('import importlib\nimportlib.import_module("tensorflow.v2")', TF, "the program imports tensorflow"),
        ("import tensorflow_hub, numpy", TF, "the program imports tensorflow_hub"),
        ("import jax, tensorflow_datasets", JAX, "the program imports jax"),
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
        ("accelerate launch train.py", "", "", TORCH),
        ("python -m torch.distributed.run train.py", "", "", TORCH),
        ("bash -c torchrun\ntrain.py", "", "", TORCH),
        ("train.py --notes torchrunner", "", "", UNKNOWN),
        ("hostname", "", "", UNKNOWN),
        ("python -c print();import\ttensorflow", "", "", TF),
        ("python -m worker_entry --epochs 3", "", "", TF),
        ("python -m torch_trainer", "", "", UNKNOWN),
        ("mnist.R data", "", "", TF),
    ],
)
def test_the_environment_or_the_command_shows_it(
    command: str, source: str, value: str, name: FrameworkName
) -> None:
    env = {"KERAS_BACKEND": value} if value else {}
    assert choices.choose_framework(command.split(" "), (source,), env)[0] is name


@pytest.mark.parametrize(
    ("source", "validates"), [("import tensorflow", True), ("import torch", True), ("import os", False)]
)
def test_only_a_program_of_a_framework_is_validated_with_it(source: str, validates: bool) -> None:
    """What a program starts may all the same be TensorFlow's: its tasks are told their place."""
    plan = make(host("a"), host("b"), command=("train.py",), sources=(source,))
    assert plan.admission.validate is validates
    assert ("TF_CONFIG" in plan.tasks[1].env) is ("torch" not in source)
    label = f"no framework known: {NO_FRAMEWORK}; `framework` under [job] names it"
    assert (label in plan.notes) is not validates
    assert needs(plan).framework is plan.recipe.framework
    own = Job(validate="./check")
    assert make(host("a"), job=own, command=("train.py",), sources=(source,)).admission.validate


@pytest.mark.parametrize("name", [TORCH, JAX])
def test_what_a_task_is_told(name: FrameworkName) -> None:
    """Of PyTorch it sees all devices of its host, as under torchrun; of JAX it takes all that it sees."""
    hosts = host("fd00::5", tasks=2, devices=("0", "1"), task_port=3000), host("b", devices=("0",))
    plan = make(*hosts, job=Job(framework=name), command=("train.py",))
    tasks = ("".join(f"{key}={value}\n" for key, value in task.env.items()) for task in plan.tasks[1:])
    matches_golden(f"environment/{name}.txt", "\n".join(tasks))


# Programs as public ones are written, and the line that task 1 of three prints, on an IPv6 host.
READS = {
    "tf_config": (
        TF,
        "import json, os, tensorflow",
        "c = json.loads(os.environ['TF_CONFIG']); print(c['task']['index'], c['cluster']['worker'][0])",
        "1 [fd00::5]:3000",
    ),
    "torch": (
        TORCH,
        "import os, torch",
        (
            "e = os.environ; print(int(e['RANK']), int(e['WORLD_SIZE']), int(e['LOCAL_RANK']),"
            " e['MASTER_ADDR'], int(e['MASTER_PORT']))"
        ),
        "1 3 1 fd00::5 3000",
    ),
    # As torchrun's options read them, and accelerate's, which has the same parser.
    "torchrun": (
        TORCH,
        "import os, torch",
        (
            "e = lambda name: os.environ['PET_' + name];"
            " print(e('NNODES'), e('NODE_RANK'), e('NPROC_PER_NODE'),"
            " ':'.join([e('MASTER_ADDR'), e('MASTER_PORT')]).rsplit(':', 1))"
        ),
        "2 0 2 ['fd00::5', '3000']",
    ),
    "jax": (
        JAX,
        "import os, jax",
        (
            "e = os.environ; print(e['JAX_COORDINATOR_ADDRESS'].rsplit(':', 1),"
            " e['JAX_NUM_PROCESSES'], e['JAX_PROCESS_ID'])"
        ),
        "['[fd00::5]', '3000'] 3 1",
    ),
    "keras": (
        JAX,
        "import os, jax",
        (
            "e = os.environ; print(e['KERAS_DISTRIBUTION_JOB_ADDRESSES'].split(',')[2],"
            " e['KERAS_DISTRIBUTION_NUM_PROCESSES'], e['KERAS_DISTRIBUTION_PROCESS_ID'])"
        ),
        "b:2222 3 1",
    ),
    "kubeflow": (
        JAX,
        "import os, jax",
        (
            "e = os.environ; print(f\"{e['COORDINATOR_ADDRESS']}:{e['COORDINATOR_PORT']}\","
            " int(e['NUM_PROCESSES']), int(e['PROCESS_ID']))"
        ),
        "[fd00::5]:3000 3 1",
    ),
    "dtensor": (
        TF,
        "import os\nfrom tensorflow.experimental import dtensor",
        (
            "e = os.environ; jobs = e['DTENSOR_JOBS'].split(',');"
            " print(len(jobs), jobs[int(e['DTENSOR_CLIENT_ID'])],"
            " e['DTENSOR_NUM_CLIENTS'], e['DTENSOR_JOB_NAME'])"
        ),
        "3 [fd00::5]:3001 3 worker",
    ),
    "keras_tuner": (
        TF,
        "import os, keras_tuner",
        (
            "e = os.environ; print('chief' in e['KERASTUNER_TUNER_ID'], e['KERASTUNER_TUNER_ID'],"
            " f\"{e['KERASTUNER_ORACLE_IP']}:{e['KERASTUNER_ORACLE_PORT']}\")"
        ),
        "False tuner0 [fd00::5]:3000",
    ),
}


@pytest.mark.parametrize("name", READS)
def test_a_program_of_each_contract_finds_its_place(name: str) -> None:
    framework, imports, code, line = READS[name]
    hosts = host("fd00::5", tasks=2, devices=("0", "1"), task_port=3000), host("b")
    plan = make(*hosts, job=Job(framework=framework), command=("train.py",), sources=(f"{imports}\n{code}",))
    elsewhere = orchestrate_rank.of_frameworks(
        1, [("[fd00::5]", 3000), ("[fd00::5]", 3001), ("b", 2222)], True
    )
    elsewhere |= {"PET_NPROC_PER_NODE": "2", "TF_CONFIG": plan.tasks[1].env.get("TF_CONFIG", "")}
    for env in (plan.tasks[1].env, elsewhere):
        done = subprocess.run(
            [sys.executable, "-c", f"import json, os\n{code}"],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"{line}\n"


@pytest.mark.parametrize(
    ("source", "shared"),
    [
        ("import keras_tuner as kt", True),
        ("from kerastuner import Hyperband", True),
        ("# import keras_tuner", False),
        ("import tensorflow", False),
        ("import keras_tuner\ntf.distribute.MultiWorkerMirroredStrategy()", False),
    ],
)
def test_only_a_search_that_tasks_share_gets_an_oracle(source: str, shared: bool) -> None:
    """The chief of Keras Tuner trains nothing: no other program may get one, nor a task alone."""
    plan = make(host("a"), host("b"), command=("train.py",), sources=(source,))
    assert ("KERASTUNER_TUNER_ID" in plan.tasks[0].env) is shared
    assert ("Keras Tuner: the first task hands out the trials, the others run them" in plan.notes) is shared
    one = make(host("a"), command=("train.py",), sources=(source,))
    assert not [name for name in one.tasks[0].env if name.startswith(("KERASTUNER", "DTENSOR"))]


@pytest.mark.parametrize("source", ["import keras_tuner", "import os"])
def test_the_file_for_other_launchers_looks_for_a_search(source: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    options = argparse.Namespace(hosts="a,b", meet=None, roles="", first=0, port=None, wait=1)
    env = orchestrate_rank.variables(
        {"RANK": "1", "WORLD_SIZE": "2"}, options, ("p", str(tmp_path / "train.py"))
    )
    assert env.get("KERASTUNER_TUNER_ID") == ("tuner0" if "tuner" in source else None)


def test_hosts_that_a_framework_or_its_launcher_cannot_have_are_refused() -> None:
    with pytest.raises(UsageError, match="a has the role chief, and the program's framework is PyTorch"):
        make(host("a", "chief"), host("b"), command=("t.py",), sources=("import torch",))
    with pytest.raises(UsageError, match="a has 2 tasks, and the command starts the processes of a host"):
        make(host("a", tasks=2), command=("torchrun", "t.py"))
    with pytest.raises(UsageError, match="a has 2 tasks, and the command starts the processes of a host"):
        make(host("a", tasks=2), command=("accelerate", "launch", "t.py"))


@pytest.mark.parametrize("option", ["--node_rank=0", "--node-rank", "--machine_rank=0"])
def test_a_node_rank_that_all_hosts_would_have_is_refused(option: str) -> None:
    starts = "accelerate launch" if option.startswith("--machine") else "torchrun"
    command = (*starts.split(), "--nnodes=2", option, *(["0"] if "=" not in option else []), "train.py")
    with pytest.raises(UsageError, match="same on all 2 hosts"):
        make(host("a"), host("b"), command=command)
    assert make(host("a"), command=command).tasks
    assert make(host("a"), host("b"), command=("train.py", option)).tasks


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
    ours = {key: value for name in FRAMEWORKS for key, value in variables(name, standing, True).items()}
    assert orchestrate_rank.of_frameworks(1, hosts, True) == ours
    plan = make(host("a", "chief"), host("b", tasks=2), host("fd00::5", "ps"), host("d", "evaluator"))
    for rank, task in enumerate(plan.tasks):
        addresses = task.env["ORCHESTRATE_HOSTS"].split(",")
        config = orchestrate_rank.tf_config(rank, list(common.roles(plan).items()), addresses)
        assert config == task.env["TF_CONFIG"]
