"""The environment of a task: from its framework, hosts, the user, and defaults; and the notes on it."""

import argparse
import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from orchestrator import orchestrate_rank
from orchestrator.cli.main import main
from orchestrator.errors import UsageError
from orchestrator.export import common
from orchestrator.frameworks import FRAMEWORKS, variables
from orchestrator.model import AutoShard, FrameworkName, Inventory, Job, RunPlan
from orchestrator.phases.preflight import needs
from orchestrator.program import choices
from orchestrator.program.sources import SourceFile
from orchestrator.requests import PreflightRequest
from orchestrator.verbs import preflight
from tests.golden import matches_golden
from tests.unit.plans import host, make

TF, TORCH, JAX = FrameworkName.TENSORFLOW, FrameworkName.TORCH, FrameworkName.JAX
UNKNOWN = FrameworkName.AUTO
TRAIN = ("train.py",)

PLAIN = "import tensorflow as tf\ntf.keras.Sequential()"
OWN = "import keras"
# Each program on one host and on two: how its environment and notes differ from PLAIN.
PROGRAMS: dict[str, tuple[str, Job]] = {
    "keras": (OWN, Job()),
    "keras in a function": ("def f():\n    try:\n        import keras\n    except ImportError: pass", Job()),
    "keras, and no Python": ("import keras\nprint(f'{x['a']}' '\nmatch 1:\n", Job()),
    "keras in a text": (f"import tf_keras\n'''\n{OWN}\n'''", Job()),
    "keras_hub": ("from keras_hub import models", Job()),
    "keras.ops": ("import tensorflow as tf\ntf.keras.ops.mean(1)", Job()),
    "central storage": (f"{OWN}\ntf.distribute.experimental.CentralStorageStrategy()", Job()),
    "no keras but in a comment": ("import tensorflow as tf\ntf.Variable(1)  # no keras.ops", Job()),
    "legacy_keras": (OWN, Job(legacy_keras=True)),
    "no legacy_keras": (PLAIN, Job(legacy_keras=False)),
    "no repair_keras": (PLAIN, Job(repair_keras=False)),
    "auto_shard": (PLAIN, Job(auto_shard=AutoShard.DATA)),
    "no auto_shard": (PLAIN, Job(auto_shard=AutoShard.OFF)),
    "it reads TF_CONFIG": ('import tensorflow\njson.loads(os.environ["TF_CONFIG"])', Job()),
    "tf_config": (PLAIN, Job(tf_config=True)),
    "it cannot be read": ("", Job()),
    "no framework": ("import os", Job()),
    "a validation of its own": ("import os", Job(validate="./check")),
    "torch": ("import torch", Job()),
    "keras_tuner": ("import keras_tuner as kt", Job()),
    "kerastuner": ("from kerastuner import Hyperband", Job()),
    "no keras_tuner": ("import tensorflow  # import keras_tuner", Job()),
    "keras_tuner in a strategy": ("import keras_tuner\ntf.distribute.MultiWorkerMirroredStrategy()", Job()),
}


def lines(plan: RunPlan) -> list[str]:
    env = [f"{name}={value}" for name, value in plan.tasks[0].env.items()]
    return [*env, *plan.notes, *(["is validated"] if plan.admission.validate else [])]


def compared(plan: RunPlan, usual: RunPlan) -> list[str]:
    """Return only the differences."""
    new, old = lines(plan), lines(usual)
    return [
        *(f"  - {one}" for one in old if one not in new),
        *(f"  + {one}" for one in new if one not in old),
    ]


def test_environment_changes_for_a_program() -> None:
    text = []
    for hosts in ((host("a"),), (host("a"), host("b"))):
        usual = make(*hosts, command=TRAIN, sources=(PLAIN,))
        text += [f"=== {len(hosts)}", *lines(usual)]
        for name, (source, job) in PROGRAMS.items():
            sources = ("import os", source) if source else ()
            text += [f"--- {name}", *compared(make(*hosts, job=job, command=TRAIN, sources=sources), usual)]
        text += ["--- the bundled program", *compared(make(*hosts), usual)]
        text += ["--- an R program", *compared(make(*hosts, command=("train.R",)), usual)]
    matches_golden("environment/programs.txt", "\n".join([*text, ""]))


PYTHON = "/opt/py/bin/python3"
ROLES = zip("abcde", ("worker", "evaluator", "worker", "service", "service"), strict=True)
TWO_GPUS = (host("fd00::5", tasks=2, devices=("0", "1"), task_port=3000), host("b", devices=("0",)))
# The whole environment of each task.
PLANS: dict[str, Callable[[], RunPlan]] = {
    "devices": partial(make, host("a", devices=("0", "1"))),
    "devices of each task": partial(make, host("a", tasks=2, devices=("3", "x"))),
    "no devices": partial(make, host("a", devices=())),
    "parameter servers": partial(make, host("a", "ps", tasks=2), host("b", "chief")),
    "a chief": partial(make, host("a"), host("b", "chief")),
    "an evaluator": partial(make, host("a"), host("b", "evaluator")),
    "R, of a Python with a path": partial(make, host("a", python=PYTHON), command=("Rscript", "train.R")),
    "PyTorch": partial(make, *TWO_GPUS, job=Job(framework=TORCH), command=TRAIN),
    "JAX": partial(make, *TWO_GPUS, job=Job(framework=JAX), command=TRAIN),
    "PyTorch, and hosts that do not train": partial(
        make,
        *(host(name, role, command=("s.py",)) for name, role in ROLES),
        job=Job(framework=TORCH),
        command=TRAIN,
    ),
    "defaults that the user sets": partial(
        make,
        host("a", env={"grpc_proxy": "x"}),
        host("b"),
        job=Job(env={"PYTHONUNBUFFERED": ""}),
        env={"TF_USE_LEGACY_KERAS": "0"},
    ),
}


def test_the_environment_of_each_task() -> None:
    def described(plan: RunPlan) -> Iterator[str]:
        for task in plan.tasks:
            yield f"{task.id} on {task.host}:"
            yield from (f"    {name}={value}" for name, value in task.env.items())
        yield from plan.notes
        yield f"complete with {plan.completion.value}: {plan.cluster}"

    text = [line for name, plan in PLANS.items() for line in (f"--- {name}", *described(plan()))]
    matches_golden("environment/tasks.txt", "\n".join([*text, ""]))


def test_a_secret_is_not_given_as_a_value() -> None:
    with pytest.raises(UsageError, match="TOKEN: is a secret") as caught:
        make(host("a"), env={"TOKEN": "hunter2"}, job=Job(secrets=("TOKEN",)))
    assert "hunter2" not in f"{caught.value.what}{caught.value.why}{caught.value.hint}"


FILES = {
    "hosts.toml": '[[host]]\nname = "a"\n[[host]]\nname = "b"\n',
    "train.py": "from tensorflow import keras\n",
    "look.py": "import os\nprint(os.uname())\n",
    "train.R": "library(tensorflow)\n",
    "run.sh": 'exec "$PYTHON" train.py\n',
    "look.sh": "#!/bin/sh\nexec df -h\n",
}
NOTED = ("--epochs 1", "train.py", "nice bash run.sh", "train.R", "python -c 'import tensorflow.keras'")
NOT_NOTED = ("hostname", "look.py", "bash look.sh", "python -m pytest", "make data")


@pytest.mark.parametrize("command", [*NOTED, *NOT_NOTED])
def test_keras_is_noted_where_a_program_uses_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "--dry-run", "--", *shlex.split(command)]) == 0
    assert ("Keras" in capsys.readouterr().out) is (command in NOTED)


# (command, source, KERAS_BACKEND, its framework)
SHOWN: list[tuple[str, str, str, FrameworkName]] = [
    ("train.py", "import tensorflow as tf", "", TF),
    ("train.py", "import torch.nn as nn", "", TORCH),
    ("train.py", "import numpy  # import torch", "", UNKNOWN),
    ("train.py", "'''This does not import tensorflow.'''\nimport json, os", "", UNKNOWN),
    ("train.py", 'import importlib\nimportlib.import_module("tensorflow.v2")', "", TF),
    ("train.py", "import tensorflow_hub, numpy", "", TF),
    ("train.py", "import jax, tensorflow_datasets", "", JAX),
    # Of several, the one that supports distributed training; many JAX programs use tf.data only for input.
    ("train.py", "import tensorflow, torch\ntf.distribute.MirroredStrategy()", "", TF),
    ("train.py", "import tensorflow, jax\njax.distributed.initialize()", "", JAX),
    ("train.py", "import tensorflow as tf, torch", "", TF),
    ("train.py", 'os.environ["KERAS_BACKEND"] = "torch"\nimport keras', "", TORCH),
    ("train.py", 'os.environ["KERAS_BACKEND"] = "torch"\nimport keras, torch.distributed', "", TORCH),
    ("train.py", 'os.environ.setdefault("KERAS_BACKEND", "jax")\nimport keras', "", JAX),
    ("train.py", 'import keras\nos.environ["KERAS_BACKEND"] = "torch"', "", TF),
    ("train.py", 'os.environ["KERAS_BACKEND"] = "jax"\nimport keras, tensorflow', "", JAX),
    ("train.py", "import keras", "torch", TORCH),
    ("train.py", 'os.environ.setdefault("KERAS_BACKEND", "torch")\nimport keras', "tensorflow", TF),
    ("train.py", 'os.environ["KERAS_BACKEND"] = "torch"\nimport keras', "tensorflow", TORCH),
    ("torchrun train.py", "", "", TORCH),
    ("accelerate launch train.py", "", "", TORCH),
    ("python -m torch.distributed.run train.py", "", "", TORCH),
    ("bash -c torchrun\ntrain.py", "", "", TORCH),
    ("bash run.sh", "set -e\naccelerate launch --num_processes $N \\\n  train.py", "", TORCH),
    ("bash run.sh", "torchrun --nproc_per_node 2 $SCRIPT", "", TORCH),
    ("bash run.sh", "# torchrun train.py\npython $SCRIPT", "", UNKNOWN),
    ("train.py --notes torchrunner", "", "", UNKNOWN),
    ("hostname", "", "", UNKNOWN),
    ("python -c print();import\ttensorflow", "", "", TF),
    ("python -m worker_entry --epochs 3", "", "", TF),
    ("python -m torch_trainer", "", "", UNKNOWN),
    ("mnist.R data", "", "", TF),
]


def test_the_framework_is_detected_from_program_command_or_environment() -> None:
    text = ""
    for command, source, value, name in SHOWN:
        env = {"KERAS_BACKEND": value} if value else {}
        words, shell = command.split(" "), source if command == "bash run.sh" else ""
        files = () if shell else (SourceFile("train.py", source),)
        chosen, why = choices.choose_framework(words, files, env, shell)
        assert chosen is name, (command, source)
        text += f"{command!r} {source!r} {value}: {name or 'none'}: {why}\n"
    matches_golden("environment/frameworks.txt", text)


ALL_HOSTS = "[fd00::5]:3000,[fd00::5]:3001,b:2222"
# What programs read, for task 1 of three on an IPv6 host: (framework, module, variables, their values).
CONTRACTS = [
    (TORCH, "torch", "RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT", "1 3 1 fd00::5 3000"),
    # As torchrun's options read them, and accelerate's, which has the same parser.
    # As shell scripts pass them to torchrun.
    (TORCH, "torch", "NNODES NUM_NODES NODE_RANK", "2 2 0"),
    (TORCH, "torch", "PET_NNODES PET_NODE_RANK PET_NPROC_PER_NODE PET_MASTER_ADDR", "2 0 2 fd00::5"),
    (JAX, "jax", "JAX_COORDINATOR_ADDRESS JAX_NUM_PROCESSES JAX_PROCESS_ID", "[fd00::5]:3000 3 1"),
    (JAX, "jax", "KERAS_DISTRIBUTION_JOB_ADDRESSES KERAS_DISTRIBUTION_PROCESS_ID", f"{ALL_HOSTS} 1"),
    # Kubeflow's
    (JAX, "jax", "COORDINATOR_ADDRESS COORDINATOR_PORT NUM_PROCESSES PROCESS_ID", "[fd00::5] 3000 3 1"),
    (TF, "tensorflow", "DTENSOR_JOBS DTENSOR_CLIENT_ID DTENSOR_NUM_CLIENTS", f"{ALL_HOSTS} 1 3"),
    (
        TF,
        "keras_tuner",
        "KERASTUNER_TUNER_ID KERASTUNER_ORACLE_IP KERASTUNER_ORACLE_PORT",
        "tuner0 [fd00::5] 3000",
    ),
]


@pytest.mark.parametrize(("framework", "module", "names", "values"), CONTRACTS)
def test_a_program_of_each_contract_finds_its_place(
    framework: FrameworkName, module: str, names: str, values: str
) -> None:
    hosts = host("fd00::5", tasks=2, devices=("0", "1"), task_port=3000), host("b")
    plan = make(*hosts, job=Job(framework=framework), command=TRAIN, sources=(f"import {module}",))
    elsewhere = orchestrate_rank.of_frameworks(1, [("[fd00::5]", 3000), ("[fd00::5]", 3001), ("b", 2222)])
    elsewhere["PET_NPROC_PER_NODE"] = "2"
    for env in (plan.tasks[1].env, elsewhere):
        assert [env[name] for name in names.split()] == values.split()


def launched(command: tuple[str, ...], hosts: str = "a,b") -> dict[str, str]:
    """Return the variables orchestrate_rank.py, for other launchers, sets for the second of two tasks."""
    options = argparse.Namespace(hosts=hosts, meet=None, roles="", first=0, port=None, wait=1)
    return orchestrate_rank.variables({"RANK": "1", "WORLD_SIZE": "2"}, options, command)


@pytest.mark.parametrize("source", ["import keras_tuner", "import os"])
def test_orchestrate_rank_detects_a_tuner_search(source: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    env = launched(("p", str(tmp_path / "train.py")))
    assert env.get("KERASTUNER_TUNER_ID") == ("tuner0" if "tuner" in source else None)


def test_hosts_unsupported_by_a_framework_or_launcher_are_refused() -> None:
    for role in ("worker", "chief"):
        with pytest.raises(UsageError, match="has the role chief, and the program's framework is PyTorch"):
            make(host("a", role), host("b", "chief"), command=("t.py",), sources=("import torch",))
    for starts in ("torchrun", "accelerate launch"):
        with pytest.raises(UsageError, match="a has 2 tasks, and the command starts the processes of a host"):
            make(host("a", tasks=2), command=(*starts.split(), "t.py"))


@pytest.mark.parametrize("option", ["--node_rank=0", "--node-rank 0", "--machine_rank=0"])
def test_a_node_rank_shared_by_all_hosts_is_refused(option: str) -> None:
    starts = "accelerate launch" if option.startswith("--machine") else "torchrun"
    command = (*starts.split(), "--nnodes=2", *option.split(), "train.py")
    with pytest.raises(UsageError, match="same on all 2 hosts"):
        make(host("a"), host("b"), command=command)
    assert make(host("a"), command=command).tasks
    assert make(host("a"), host("b"), command=("train.py", *option.split())).tasks


def test_a_number_of_nodes_that_is_not_the_runs_is_refused() -> None:
    """With `--nnodes=1` the first host would train alone, and the others wait until it ends."""
    hosts = (host("a"), host("b"))
    for option in ("--nnodes=1", "--nnodes 3"):
        with pytest.raises(UsageError, match=f"{option} does not fit 2 hosts"):
            make(*hosts, command=("torchrun", *option.split(), "train.py"))
    for fine in ("--nnodes=2", "--nnodes=1:2", "--standalone --nnodes=1"):
        assert make(*hosts, command=("torchrun", *fine.split(), "train.py")).tasks
    assert make(host("a"), command=("torchrun", "--nnodes=1", "train.py")).tasks
    assert make(*hosts, command=("torchrun", "train.py", "--nnodes=1")).tasks  # an option of the program


OWN = " runs on each host.*coming-from"
SAME = r" is the same on all hosts.*\$NNODES"
NO_WAIT = "the program that the script starts with & is ended .*`wait`"
TO_FILE = "R CMD BATCH .* with `Rscript train.R` it appears here"


@pytest.mark.parametrize(
    ("command", "shell", "note"),
    [
        ("deepspeed --num_gpus=2 train.py", "", f"deepspeed{OWN}"),
        ("/opt/bin/mpirun -np 2 python train.py", "", f"mpirun{OWN}"),
        ("fabric run --devices=2 train.py", "", f"fabric run{OWN}"),
        ("", "set -e\nhorovodrun -np 2 \\\n  python train.py", f"horovodrun{OWN}"),
        ("", "cd src && srun python train.py", f"srun{OWN}"),
        ("", "deepspeed --no_ssh --node_rank=$NODE_RANK train.py", ""),
        ("", "pip install deepspeed\n# mpirun python train.py\npython train.py --deepspeed ds.json", ""),
        ("", "torchrun --nnodes=1 --nproc_per_node=8 train.py", f"--nnodes=1{SAME}"),
        ("", "torchrun --nnodes=1:2 train.py", ""),
        ("", "torchrun --standalone --nnodes=1 train.py", "torchrun --standalone or "),
        ("", "torchrun --nnodes=2 \\\n  --node_rank=0 train.py", f"--node_rank=0{SAME}"),
        ("", "accelerate launch --machine_rank 1 train.py", f"--machine_rank 1{SAME}"),
        ("", "NODE_RANK=0\ntorchrun --node_rank=${NODE_RANK} train.py", f"NODE_RANK=0{SAME}"),
        ("", "NODE_RANK=${NODE_RANK:-0}\ntorchrun --nnodes=$NNODES --node_rank=$NODE_RANK train.py", ""),
        (
            "",
            "case $1 in 0) torchrun --node_rank=0 t.py;; *) torchrun --node_rank=$NODE_RANK t.py;; esac",
            "",
        ),
        ("", "nohup python train.py > train.log 2>&1 &\necho $!", NO_WAIT),
        ("", "for i in 0 1; do\n  python3 train.py --seed $i &\ndone", NO_WAIT),
        ("", "for i in 0 1; do\n  python3 train.py --seed $i &\ndone\nwait", ""),
        ("", "nvidia-smi -l 5 > gpu.log &\npython train.py && echo done", ""),
        ("", "set -e\nR CMD BATCH train.R out.txt", TO_FILE),
        ("R CMD BATCH --no-save train.R", "", TO_FILE),
    ],
)
def test_a_script_that_trains_otherwise_than_meant_has_one_note(command: str, shell: str, note: str) -> None:
    usual = ("no framework detected", "PyTorch: the", "TensorFlow: the", "PYTHONUNBUFFERED=1 ")
    for hosts in ((host("a"), host("b")), (host("a"),)):
        notes = make(*hosts, command=tuple((command or "bash run.sh").split()), shell=shell).notes
        found = [one for one in notes if not one.startswith(usual)]
        assert len(found) == (note != "" and (len(hosts) > 1 or note in (NO_WAIT, TO_FILE)))
        assert all(re.match(note, one) for one in found), found


@pytest.mark.parametrize(
    ("command", "shell", "alone"),
    [
        ("torchrun --standalone train.py", "", True),
        ("torchrun --nproc_per_node=2 --standalone train.py", "", True),
        ("python -m torch.distributed.run --standalone train.py", "", True),
        ("bash -c torchrun\\\n--standalone train.py", "", True),
        ("torchrun --rdzv-backend=c10d --rdzv-endpoint=localhost:0 train.py", "", True),
        ("torchrun --rdzv_endpoint gpu-01:29400 train.py", "", False),
        ("./train.sh", "set -e\ntorchrun \\\n    --standalone \\\n    train.py\n", True),
        ("./train.sh", "# torchrun --standalone train.py\ntorchrun train.py\n", False),
        ("torchrun train.py", "", False),
        ("torchrun train.py --standalone_eval", "", False),
    ],
)
def test_torchrun_standalone_trains_on_each_host(command: str, shell: str, alone: bool) -> None:
    """With PET_NNODES each would wait for the others at its own address."""
    words, sources = tuple(command.split(" ")), ("import torch",)
    plan = make(host("a"), host("b"), command=words, sources=sources, shell=shell)
    assert ("PET_NNODES" in plan.tasks[0].env) is not alone
    assert "PET_NPROC_PER_NODE" in plan.tasks[0].env
    note = "each host trains separately"
    assert (note in "".join(plan.notes)) is alone
    assert note not in "".join(make(host("a"), command=words, sources=sources, shell=shell).notes)
    assert shell or ("PET_NNODES" in launched(words)) is not alone


def test_preflight_uses_the_framework_of_the_job_or_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch")
    for job in (Job(framework=TORCH), Job(command=TRAIN)):
        assert needs(preflight.everything(PreflightRequest(Inventory((host("a"),), job)))).framework is TORCH


def test_orchestrate_rank_sets_the_same_variables() -> None:
    """orchestrate_rank.py, for Slurm and Kubernetes, is independent, but must use the same names."""
    hosts = [("a", 2222), ("a", 2223), ("[fd00::5]", 2222)]
    place = orchestrate_rank.values((("a", 2222), ("a", 2223), ("fd00::5", 2222)), 1, (1, 2), (0, 2))
    ours = {key: value for name in FRAMEWORKS for key, value in variables(name, place, True).items()}
    assert orchestrate_rank.of_frameworks(1, hosts) == ours
    plan = make(host("a", "chief"), host("b", tasks=2), host("fd00::5", "ps"), host("d", "evaluator"))
    addresses = [*plan.tasks[0].env["ORCHESTRATE_HOSTS"].split(","), "d:2222"]
    for rank, task in enumerate(plan.tasks):
        config = orchestrate_rank.tf_config(rank, list(common.roles(plan).items()), addresses)
        assert config == task.env["TF_CONFIG"]
