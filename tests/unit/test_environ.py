"""The environment of a task: what the tool sets, what the user sets, who wins, and what is said about it."""

from __future__ import annotations

import json

import pytest

from orchestrator.cli.args.readings import assignment
from orchestrator.errors import UsageError
from orchestrator.model import AutoShard, Job
from orchestrator.planning import environ
from orchestrator.program import keras
from tests.unit.plans import host, make

KERAS = (
    "so that tf.keras is Keras 2 (tf_keras), on one task as on several; legacy_keras = false under [job]"
    " makes it Keras 3"
)
PROXY = "set grpc_proxy= so that tasks do not look for each other through an http_proxy"
BUFFER = "set PYTHONUNBUFFERED=1 so that output arrives as it is printed"


def test_the_defaults_and_what_is_said() -> None:
    plan = make(host("a"), host("b"), command=("train.py",))
    env = {name: value for name, value in plan.tasks[0].env.items() if name != "TF_CONFIG"}
    ours = {"ORCHESTRATE_KERAS": "tf_keras,keras", "ORCHESTRATE_AUTO_SHARD": "auto"}
    ours |= {"ORCHESTRATE_RANK": "0", "ORCHESTRATE_SIZE": "2", "ORCHESTRATE_LOCAL_RANK": "0"}
    ours["ORCHESTRATE_HOSTS"] = "a:2222,b:2222"
    assert env == {"PYTHONUNBUFFERED": "1", "grpc_proxy": "", "TF_USE_LEGACY_KERAS": "1", **ours}
    assert plan.notes == (BUFFER, PROXY, f"set TF_USE_LEGACY_KERAS=1 {KERAS}")


def test_who_wins() -> None:
    names = ["tool", "forward", "job", "host", "option"]
    layers = {name: dict.fromkeys(names[place:], name) for place, name in enumerate(names)}
    chosen = [environ.Default(name, "tool", "why") for name in names]
    env, stood = environ.layer(chosen, *(layers[name] for name in names[1:]), tf_config="{}")
    assert env == {**{name: name for name in names}, "TF_CONFIG": "{}"}
    assert [default.name for default in stood] == ["tool"]


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
OPS = "import tensorflow as tf\ntf.keras.ops.mean(1)"
CENTRAL = "import keras\ntf.distribute.experimental.CentralStorageStrategy()"
NONE = "import tensorflow as tf\ntf.Variable(1)  # no keras.ops"
TRAIN = ("train.py",)
TWO = "so that tf.keras is Keras 2"


@pytest.mark.parametrize(
    ("wanted", "command", "source", "legacy", "note"),
    [
        (None, (), None, True, TWO),
        (None, ("bash", "run.sh"), None, True, TWO),
        (None, TRAIN, PLAIN, True, TWO),
        (None, TRAIN, OWN, False, "Keras 3, the program uses `import keras`"),
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
        told = [text for text in plan.notes if "eras" in text]
        assert len(told) == bool(note)
        assert not note or note in told[0]


@pytest.mark.parametrize(
    ("source", "hosts", "job", "parts"),
    [
        (PLAIN, ("worker",), Job(), "tf_keras"),
        (PLAIN, ("worker", "worker"), Job(), "tf_keras,keras"),
        (OWN, ("worker",), Job(), None),
        (OWN, ("worker", "worker"), Job(), "keras"),
        (PLAIN, ("worker", "worker"), Job(repair_keras=False), None),
        ("import os", ("worker", "worker"), Job(), None),
    ],
)
def test_what_is_repaired(source: str, hosts: tuple[str, ...], job: Job, parts: str | None) -> None:
    named = [host(f"h{number}", role) for number, role in enumerate(hosts)]
    plan = make(*named, job=job, command=TRAIN, sources=(source,))
    assert plan.tasks[0].env.get("ORCHESTRATE_KERAS") == parts


def test_parameter_servers_are_told_of_keras_3() -> None:
    plan = make(host("a", "chief"), host("b", "ps"), command=TRAIN, sources=(OWN,))
    assert "its `fit` is wrong with parameter servers" in plan.notes[-1]


@pytest.mark.parametrize(
    ("source", "job", "given"),
    [
        (PLAIN, Job(), False),
        ('import os\njson.loads(os.environ["TF_CONFIG"])', Job(), True),
        ("tf.distribute.cluster_resolver.TFConfigClusterResolver()", Job(), True),
        ("tf.estimator.train_and_evaluate()", Job(), True),
        ("", Job(), True),  # it cannot be read
        (PLAIN, Job(tf_config=True), True),
        ("TF_CONFIG", Job(tf_config=False), False),
    ],
)
def test_tf_config_of_one_task(source: str, job: Job, given: bool) -> None:
    sources = (source,) if source else ()
    assert ("TF_CONFIG" in make(host("a"), job=job, command=TRAIN, sources=sources).tasks[0].env) is given
    assert "TF_CONFIG" in make(host("a"), host("b"), job=job, command=TRAIN, sources=sources).tasks[0].env


@pytest.mark.parametrize(
    ("job", "value", "noted"),
    [
        (Job(), "auto", False),
        (Job(auto_shard=AutoShard.DATA), "data", True),
        (Job(auto_shard=AutoShard.OFF), None, False),
    ],
)
def test_auto_shard_is_for_several_tasks(job: Job, value: str | None, noted: bool) -> None:
    assert "ORCHESTRATE_AUTO_SHARD" not in make(host("a"), job=job).tasks[0].env
    plan = make(host("a"), host("b"), job=job)
    assert plan.tasks[0].env.get("ORCHESTRATE_AUTO_SHARD") == value
    assert ("set ORCHESTRATE_AUTO_SHARD=data as auto_shard says" in plan.notes) is noted


@pytest.mark.parametrize(
    ("source", "imports"),
    [
        ("import keras", "keras"),
        ("import os, keras.layers as layers", "keras"),
        ("from keras.layers import Dense", "keras"),
        ("import keras_nlp", "keras_nlp"),
        ("def f():\n    try:\n        import keras\n    except ImportError: pass", "keras"),
        ("import keras\nprint(f'{x['a']}' '\nmatch 1:\n", "keras"),
        ("print 'python 2'\nfrom keras.models import Model", "keras"),
        ("import tf_keras", ""),
        ("import keras_tuner", ""),
        ("from tensorflow import keras", ""),
        ("from . import keras", ""),
        ("# import keras", ""),
        ("'''\nimport keras\n'''", ""),
        ("", ""),
        ("(" * 10000, ""),
    ],
)
def test_does_a_script_import_keras(source: str, imports: str) -> None:
    assert keras.imported(source) == imports


@pytest.mark.parametrize(
    ("entry", "gpus", "note"),
    [
        (host("a"), [None], None),
        (host("a", devices=("0", "1")), ["0,1"], "set CUDA_VISIBLE_DEVICES=0,1 as `devices` says"),
        (
            host("a", tasks=2, devices=("3", "GPU-x")),
            ["3", "GPU-x"],
            "set CUDA_VISIBLE_DEVICES as `devices` says",
        ),
        (host("a", devices=()), ["-1"], "set CUDA_VISIBLE_DEVICES=-1 as `devices = []` says"),
        (
            host("a", "ps", tasks=2),
            ["-1", "-1"],
            "set CUDA_VISIBLE_DEVICES=-1 since a ps task needs no GPU; give its host `devices` to change it",
        ),
        (host("a", "ps", devices=("0",)), ["0"], "set CUDA_VISIBLE_DEVICES=0 as `devices` says"),
    ],
)
def test_devices(entry: object, gpus: list[str | None], note: str | None) -> None:
    plan = make(entry)  # type: ignore[arg-type]
    assert [task.env.get("CUDA_VISIBLE_DEVICES") for task in plan.tasks] == gpus
    order = {task.env.get("CUDA_DEVICE_ORDER") for task in plan.tasks}
    assert order == ({"PCI_BUS_ID"} if gpus[0] not in {None, "-1"} else {None})
    assert [text for text in plan.notes if "VISIBLE" in text] == ([note] if note else [])


def test_an_evaluator_beside_workers_is_named_in_the_note() -> None:
    plan = make(host("a"), host("b", "evaluator"))
    (note,) = (text for text in plan.notes if "CUDA" in text)
    assert note.startswith("set CUDA_VISIBLE_DEVICES=-1 on evaluator/0 since an evaluator task needs no GPU")


@pytest.mark.parametrize(
    ("python", "command", "value"),
    [
        ("~/venv/bin/python", "train.R", "~/venv/bin/python"),
        ("/opt/py/bin/python3", "Rscript train.R", "/opt/py/bin/python3"),
        ("python3", "train.R", None),  # reticulate wants a path; the node puts the right one first on PATH
        ("/opt/py/bin/python3", "train.py", None),
    ],
)
def test_reticulate(python: str, command: str, value: str | None) -> None:
    plan = make(host("a", python=python), command=tuple(command.split()))
    assert plan.tasks[0].env.get("RETICULATE_PYTHON") == value


def test_forwarded_names_take_their_value_from_the_controller() -> None:
    plan = make(host("a"), job=Job(forward=("A", "B")), environ={"A": "1", "B": "", "C": "3"})
    env = plan.tasks[0].env
    assert (env["A"], env["B"], "C" in env) == ("1", "", False)


def test_a_missing_forwarded_name_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        make(host("a"), job=Job(forward=("HOME", "RUN_NAME", "TEAM")), environ={"HOME": "/"})
    assert caught.value.what == "RUN_NAME, TEAM are not set on this machine"
    assert (
        caught.value.why == "`forward` under [job] takes them from the environment orchestrate is called in"
    )
    assert caught.value.hint == "`export RUN_NAME=...`, or remove it from `forward`"


def test_secret_values() -> None:
    assert environ.values_here("secrets", ("TOKEN",), {"TOKEN": "hunter2", "A": "1"}) == {"TOKEN": "hunter2"}
    with pytest.raises(UsageError) as caught:
        environ.values_here("secrets", ("TOKEN",), {})
    assert caught.value.what == "TOKEN is not set on this machine"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["A B=1"], "--env A B: is not a name for a variable (letters, digits and _, and no digit first)"),
        (
            ["TF_CONFIG={}"],
            "--env TF_CONFIG: is written by orchestrate, for each task; it cannot be set by hand",
        ),
        (
            ["ORCHESTRATE_RUN=1"],
            "--env ORCHESTRATE_RUN: is one of orchestrate's own names (ORCHESTRATE_...)",
        ),
        (["TOKEN=hunter2"], "--env TOKEN: is a secret and may not be given as a value"),
    ],
)
def test_options_that_cannot_be(options: list[str], what: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(host("a"), env=dict(map(assignment, options)), job=Job(secrets=("TOKEN",)))
    assert caught.value.what == what
    assert "hunter2" not in f"{caught.value.what}{caught.value.why}{caught.value.hint}"


def test_nothing_replaces_tf_config() -> None:
    env, _ = environ.layer((), {"TF_CONFIG": "mine"}, {"TF_CONFIG": "mine"}, tf_config="{}")
    assert json.loads(env["TF_CONFIG"]) == {}
