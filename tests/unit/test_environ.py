"""The environment of a task: what the tool sets, what the user sets, who wins, and what is said about it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.errors import UsageError
from orchestrator.model import AutoShard, Job
from tests.unit.plans import host, make

PROXY = "set grpc_proxy= so that tasks do not look for each other through an http_proxy"


def test_the_defaults_and_what_is_said() -> None:
    plan = make(host("a"), host("b"), command=("train.py",), sources=(PLAIN,))
    env = {name: value for name, value in plan.tasks[0].env.items() if name != "TF_CONFIG"}
    ours = {"ORCHESTRATE_KERAS": "tf_keras,keras", "ORCHESTRATE_AUTO_SHARD": "auto"}
    ours |= {"ORCHESTRATE_RANK": "0", "ORCHESTRATE_SIZE": "2", "ORCHESTRATE_LOCAL_RANK": "0"}
    ours["ORCHESTRATE_HOSTS"] = ours["DTENSOR_JOBS"] = "a:2222,b:2222"
    ours |= {"DTENSOR_CLIENT_ID": "0", "DTENSOR_NUM_CLIENTS": "2", "DTENSOR_JOB_NAME": "worker"}
    assert env == {"PYTHONUNBUFFERED": "1", "grpc_proxy": "", "TF_USE_LEGACY_KERAS": "1", **ours}
    keras = "tf.keras is Keras 2 (tf_keras), on one task as on several; legacy_keras = false under [job]"
    assert plan.notes[1:] == (
        "set PYTHONUNBUFFERED=1 so that output arrives as it is printed",
        PROXY,
        f"set TF_USE_LEGACY_KERAS=1 so that {keras} makes it Keras 3",
    )


def test_a_default_the_user_sets_is_not_ours_to_explain() -> None:
    plan = make(
        host("a", env={"grpc_proxy": "x"}),
        host("b"),
        job=Job(env={"PYTHONUNBUFFERED": ""}),
        env={"TF_USE_LEGACY_KERAS": "0"},
    )
    assert plan.tasks[0].env["grpc_proxy"] == "x"
    assert plan.tasks[1].env["TF_USE_LEGACY_KERAS"] == "0"
    assert plan.notes == (PROXY.replace("= ", "= on worker/1 "),)


PLAIN = "import tensorflow as tf\ntf.keras.Sequential()"
OWN = "import keras"
LATE = "def f():\n    try:\n        import keras\n    except ImportError: pass"
BROKEN = "import keras\nprint(f'{x['a']}' '\nmatch 1:\n"
OPS = "import tensorflow as tf\ntf.keras.ops.mean(1)"
CENTRAL = "import keras\ntf.distribute.experimental.CentralStorageStrategy()"
NONE = "import tensorflow as tf\ntf.Variable(1)  # no keras.ops"
TRAIN = ("train.py",)
TWO = "so that tf.keras is Keras 2"


@pytest.mark.parametrize(
    ("wanted", "command", "source", "legacy", "note"),
    [
        (None, (), None, True, TWO),
        (None, TRAIN, PLAIN, True, TWO),
        (None, TRAIN, OWN, False, "Keras 3, the program uses `import keras`"),
        (None, TRAIN, LATE, False, "Keras 3, the program uses `import keras`"),
        (None, TRAIN, BROKEN, False, "Keras 3, the program uses `import keras`"),
        (None, TRAIN, f"import tf_keras\n'''\n{OWN}\n'''", True, TWO),
        (None, TRAIN, "from keras_hub import models", False, "Keras 3, the program uses `import keras_hub`"),
        (None, TRAIN, OPS, False, "Keras 3, the program uses keras.ops"),
        (None, TRAIN, CENTRAL, False, "its `fit` is wrong with CentralStorageStrategy"),
        (None, TRAIN, NONE, False, ""),  # a comment shows nothing
        (True, TRAIN, OWN, True, "as legacy_keras = true says"),
        (False, TRAIN, PLAIN, False, "Keras 3, as legacy_keras = false says"),
    ],
)
def test_the_keras_of_one_task_and_of_four(
    wanted: bool | None, command: tuple[str, ...], source: str | None, legacy: bool, note: str
) -> None:
    job = Job(legacy_keras=wanted)
    sources = () if source is None else ("import os", source)
    for many in (1, 4):
        plan = make(*(host(f"h{n}") for n in range(many)), job=job, command=command, sources=sources)
        assert plan.tasks[0].env.get("TF_USE_LEGACY_KERAS") == ("1" if legacy else None)
        told = [text for text in plan.notes if "eras" in text and "`framework`" not in text]
        assert len(told) == bool(note)
        assert not note or note in told[0]
        assert not any("repaired" in text for text in told)  # no version is known here; a task reports it


@pytest.mark.parametrize(
    ("source", "job", "given"),
    [
        (PLAIN, Job(), False),
        ('import os\njson.loads(os.environ["TF_CONFIG"])', Job(), True),
        ("", Job(), True),  # it cannot be read
        (PLAIN, Job(tf_config=True), True),
    ],
)
def test_tf_config_of_one_task(source: str, job: Job, given: bool) -> None:
    sources = (source,) if source else ()
    assert ("TF_CONFIG" in make(host("a"), job=job, command=TRAIN, sources=sources).tasks[0].env) is given
    assert "TF_CONFIG" in make(host("a"), host("b"), job=job, command=TRAIN, sources=sources).tasks[0].env


@pytest.mark.parametrize(
    ("source", "job", "name", "value"),
    [
        (OWN, Job(), "ORCHESTRATE_KERAS", "keras"),
        (PLAIN, Job(repair_keras=False), "ORCHESTRATE_KERAS", None),
        (PLAIN, Job(auto_shard=AutoShard.DATA), "ORCHESTRATE_AUTO_SHARD", "data"),
        (PLAIN, Job(auto_shard=AutoShard.OFF), "ORCHESTRATE_AUTO_SHARD", None),
    ],
)
def test_what_is_repaired_of_several_tasks(source: str, job: Job, name: str, value: str | None) -> None:
    plan = make(host("a"), host("b"), job=job, command=TRAIN, sources=(source,))
    assert plan.tasks[0].env.get(name) == value
    assert ("set ORCHESTRATE_AUTO_SHARD=data as auto_shard says" in plan.notes) is (value == "data")
    assert "ORCHESTRATE_AUTO_SHARD" not in make(host("a"), job=job).tasks[0].env


@pytest.mark.parametrize(
    ("entry", "gpus", "note"),
    [
        (host("a"), [None], None),
        (host("a", devices=("0", "1")), ["0,1"], "set CUDA_VISIBLE_DEVICES=0,1 as `devices` says"),
        (host("a", tasks=2, devices=("3", "x")), ["3", "x"], "set CUDA_VISIBLE_DEVICES as `devices` says"),
        (host("a", devices=()), ["-1"], "set CUDA_VISIBLE_DEVICES=-1 as `devices = []` says"),
        (
            host("a", "ps", tasks=2),
            ["-1", "-1"],
            "set CUDA_VISIBLE_DEVICES=-1 since ps tasks need no GPU; give its host `devices` to change it",
        ),
    ],
)
def test_devices(entry: object, gpus: list[str | None], note: str | None) -> None:
    plan = make(entry)  # type: ignore[arg-type]
    assert [task.env.get("CUDA_VISIBLE_DEVICES") for task in plan.tasks] == gpus
    order = {task.env.get("CUDA_DEVICE_ORDER") for task in plan.tasks}
    assert order == ({"PCI_BUS_ID"} if gpus[0] not in {None, "-1"} else {None})
    assert [text for text in plan.notes if "VISIBLE" in text] == ([note] if note else [])


@pytest.mark.parametrize(
    ("python", "command", "value"),
    [
        ("~/venv/bin/python", "train.R", "~/venv/bin/python"),
        ("/opt/py/bin/python3", "Rscript train.R", "/opt/py/bin/python3"),
        ("python3", "train.R", None),  # reticulate wants a path; the node puts the right one first on PATH
    ],
)
def test_reticulate(python: str, command: str, value: str | None) -> None:
    plan = make(host("a", python=python), command=tuple(command.split()))
    assert plan.tasks[0].env.get("RETICULATE_PYTHON") == value


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


@pytest.mark.parametrize(
    ("command", "noted"), [*((line, True) for line in NOTED), *((line, False) for line in NOT_NOTED)]
)
def test_keras_is_noted_where_a_program_names_it(
    command: str,
    noted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "--dry-run", "--", *shlex.split(command)]) == 0
    assert ("Keras" in capsys.readouterr().out) is noted
