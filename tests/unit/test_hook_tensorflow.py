"""Our hook's changes to Keras and TensorFlow, tested with stubs: tests/scripts uses the real ones."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.hook import site_frameworks as hook
from orchestrator.node.hook import site_meeting
from worker_entry.__main__ import prepare_environment


class Strategy:
    """A strategy with that many workers."""

    other = 0.0  # each weight of another task

    def __init__(self, workers: int) -> None:
        self.extended = SimpleNamespace(_in_multi_worker_mode=lambda: workers > 1)

    def run(self, function: Callable[[], list[float]]) -> list[float]:
        return function()

    def experimental_local_results(self, values: list[float]) -> "list[Tensor]":
        return [Tensor([(value + self.other) / 2 for value in values])]


class Tensor(list[float]):
    dtype = "float32"

    def __getitem__(self, part: Any) -> Any:
        return Tensor(super().__getitem__(part))

    def numpy(self) -> "Tensor":
        return self

    def tolist(self) -> list[float]:
        return [*self]


class Trainer:
    """The parts of Keras' trainer that the hook uses."""

    def __init__(self, workers: int = 2, steps: int = 1) -> None:
        self._distribute_strategy = self.distribute_strategy = Strategy(workers)
        self.steps_per_execution = steps

    def fit(self) -> str:
        return "fits"

    evaluate = fit

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None: ...
    def _symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None: ...


class Epochs:
    def __init__(self, distribute_strategy: Any = None) -> None:
        self._distributed_dataset = distribute_strategy


def reduce_per_replica(values: Any, strategy: Any, reduction: Any) -> Any: ...
def several(values: Any, strategy: Any) -> Any: ...


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Fake Keras 3.15.1, from which a test may remove parts."""
    for name in ("keras", "keras.src"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    version = ModuleType("keras.src.version")
    version.__dict__["__version__"] = "3.15.1"
    monkeypatch.setitem(sys.modules, version.__name__, version)
    monkeypatch.delenv("ORCHESTRATE_SPEAKER", raising=False)
    made = type("Trainer", (Trainer,), dict(vars(Trainer)))
    return SimpleNamespace(
        version=version,
        TensorFlowTrainer=made,
        TFEpochIterator=Epochs,
        reduce_per_replica=reduce_per_replica,
        tree=None,
    )


def test_an_untested_version_is_reported(keras: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    keras.version.__version__ = "3.99.0"
    hook.repair(keras)
    assert "not tried before" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["older", "no iterator", "another signature", "no function", "part"])
def test_an_unexpected_keras_does_not_train_on_several_tasks(
    keras: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(hook, "_missing", [])
    match change:
        case "older":
            keras.version.__version__ = "3.9.2"
        case "no iterator":
            keras.TFEpochIterator = None
        case "another signature":
            keras.reduce_per_replica = several
        case "no function":
            keras.TensorFlowTrainer._symbolic_build = None
        case "part":
            hook._if_there(hook.clip)(SimpleNamespace(TFOptimizer=object))
    hook.repair(keras)
    for name in ("fit", "evaluate"):
        with pytest.raises(RuntimeError, match=r"cannot repair Keras 3\.\d+\.\d for several tasks: .*3\.10"):
            getattr(keras.TensorFlowTrainer(), name)()
    assert keras.TensorFlowTrainer(workers=1).fit() == "fits"


@pytest.mark.parametrize(
    ("attempt", "mine", "other", "raised"),
    [
        ("2", 0.5, 0.5, False),
        ("2", 0.5, 0.500001, False),  # trained together, on machines that round differently
        ("2", 0.5, 0.501, True),
        ("3", 0.5, 0.0, True),
        ("2", 0.0, 0.5, True),
        ("2", 0.0, 0.0, False),
        ("1", 0.5, 0.0, False),
        ("validate", 0.5, 0.0, False),
    ],
)
def test_tasks_do_not_continue_from_different_weights(
    attempt: str, mine: float, other: float, raised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Keras does with restarts, if each task loads its own checkpoint and one is older, or missing."""
    tensorflow = SimpleNamespace(
        distribute=SimpleNamespace(
            MultiWorkerMirroredStrategy=Strategy,
            get_replica_context=lambda: SimpleNamespace(all_reduce=lambda _mean, values: values),
        ),
        function=lambda call, **_: call,
        float32="float32",
        float64="float64",
        constant=lambda values, _: values,
        convert_to_tensor=lambda weight: weight,
        reshape=lambda weight, _: weight,
    )
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    monkeypatch.setenv("ORCHESTRATE_ATTEMPT", attempt)
    monkeypatch.setattr(hook, "_compared", [])
    model = Trainer()
    model.distribute_strategy.other = other
    model.__dict__.update(built=True, trainable_weights=[Tensor([mine] * 64)])
    callbacks = type("CallbackList", (), {"on_train_begin": print, "model": model})
    hook.compare(SimpleNamespace(CallbackList=callbacks))
    fit = {"__name__": "keras.src.backend.tensorflow.trainer", "callbacks": callbacks()}
    callbacks().on_train_begin()  # in a loop of the program
    with pytest.raises(RuntimeError, match="different weights") if raised else nullcontext():
        exec("callbacks.on_train_begin()", fit)
    exec("callbacks.on_train_begin()", fit)  # only the first is compared


def test_layers_of_another_backend_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's keras.json may select it, and then TensorFlow is not imported."""
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    layer = SimpleNamespace(Layer=type("Layer", (), {"add_weight": len}))
    hook.average(layer)
    assert (layer.Layer.add_weight, hasattr(layer.Layer, "_losses")) == (len, False)


PACKAGES = {
    "tuner": {
        "__init__": "from tuner.src import engine",
        "src/__init__": "",
        "src/engine": "if 1:\n    import keras\n",
    },
    "relative": {
        "__init__": "from . import a",
        "a": "from .b import x",
        "b": "from keras import layers\nx = 1",
    },
    "lazy": {
        "__init__": "def load():\n    import keras",
        "integration/__init__": "",
        "integration/k": "import keras",
    },
    "either": {"__init__": "try:\n    import tf_keras as keras\nexcept ImportError:\n    import keras"},
    "of_tf": {"__init__": "from tensorflow import keras\nfrom tensorflow.keras import layers"},
    "broken": {"__init__": "import ("},
}


@pytest.mark.parametrize(
    ("modules", "built_on"),
    [
        ("os,tuner", "tuner"),
        ("tuner.src.engine.Tuner", "tuner.src.engine.Tuner"),
        ("relative", "relative"),
        ("lazy", ""),
        ("lazy,lazy.integration.k", "lazy.integration.k"),
        ("either,of_tf,broken,not_installed", ""),
    ],
)
def test_tf_keras_is_keras_3_for_packages_built_on_it(
    modules: str,
    built_on: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, files in PACKAGES.items():
        for file, text in files.items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / f"{file}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    monkeypatch.setenv("ORCHESTRATE_KERAS_OF", modules)
    hook.choose_keras()
    output = capsys.readouterr().err
    assert ("TF_USE_LEGACY_KERAS" not in os.environ) == bool(built_on)
    assert f"since {built_on} is built on it" in output if built_on else not output


@pytest.mark.parametrize(
    ("keras", "has_tf_keras", "removed"),
    [("2.15.0", False, True), ("2.15.0", True, False), ("3.10.0", False, False)],
)
def test_an_environment_with_only_keras_2_needs_no_tf_keras(
    keras: str, has_tf_keras: bool, removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with TensorFlow 2.15, where tf.keras is Keras 2 and TF_USE_LEGACY_KERAS=1 requires tf_keras."""
    packages = tmp_path / f"keras-{keras}.dist-info"
    packages.mkdir()
    (packages / "METADATA").write_text(f"Metadata-Version: 2.1\nName: keras\nVersion: {keras}\n")
    if has_tf_keras:
        (tmp_path / "tf_keras.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    monkeypatch.setenv("ORCHESTRATE_KERAS", "tf_keras,keras")
    hook.choose_keras()
    assert ("TF_USE_LEGACY_KERAS" not in os.environ) == removed
    environ = dict[str, str]()
    prepare_environment(environ)  # the bundled program decides alike
    assert (environ["TF_USE_LEGACY_KERAS"] == "0") == removed


# --- Workers wait until their leader listens ---


class Joining:
    """A framework's worker, and a leader that listens only after the first attempt was refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leader = socket.socket()
        self.leader.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.leader.getsockname()[1]}"
        self.waits = self.joined = 0
        monkeypatch.setattr("time.sleep", self._pause)

    def _pause(self, _: float) -> None:
        self.waits += 1
        self.leader.listen()

    def tensorflow(self, leader: str | None, task: int) -> None:
        class Context:
            coordination_service = SimpleNamespace(service_leader=leader)

            def enable_collective_ops(context, _: Any) -> None:  # noqa: N805
                self.joined += 1

            def set_server_def(context, _: Any, seconds: int = 0) -> None:  # noqa: N805
                self.joined += seconds

        site_meeting.await_servers(SimpleNamespace(Context=Context))
        job = SimpleNamespace(name="worker", tasks={0: self.address, 1: "127.0.0.1:1"})
        server = SimpleNamespace(job_name="worker", task_index=task, cluster=SimpleNamespace(job=[job]))
        if leader is None:
            Context().set_server_def(server, seconds=1)
        else:
            Context().enable_collective_ops(server)

    def jax(self, address: str, process: int) -> None:
        def client(_: str, __: int, **more: Any) -> None:
            self.joined += more["timeout"]

        runtime = SimpleNamespace(get_distributed_runtime_client=client)
        site_meeting.meet(SimpleNamespace(shutdown=None, _jax=runtime))
        runtime.get_distributed_runtime_client(address or self.address, process, timeout=1)


LEADER = "/job:worker/replica:0/task:0"


@pytest.mark.parametrize(
    ("join", "waits"),
    [
        (lambda joining: joining.tensorflow(LEADER, 1), 1),
        (lambda joining: joining.tensorflow(LEADER, 0), 0),  # the leader itself
        (lambda joining: joining.tensorflow("/job:chief/replica:0/task:0", 1), 0),  # not in the cluster
        (lambda joining: joining.tensorflow("", 1), 0),  # a TensorFlow version without this service
        (lambda joining: joining.tensorflow(None, 1), 1),  # the coordinator of parameter servers
        (lambda joining: joining.jax("", 1), 1),
        (lambda joining: joining.jax("", 0), 0),
        (lambda joining: joining.jax("no port", 1), 0),
    ],
)
def test_a_worker_joins_once_its_leader_listens(
    join: Callable[[Joining], None], waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    joining = Joining(monkeypatch)
    with joining.leader:
        join(joining)
        assert (joining.waits, joining.joined) == (waits, 1)


LEAVING = """
import atexit, sys, types
from orchestrator.node.hook import site_meeting
site_meeting.note_exits()
atexit.register(print, "the program's own end")
jax = types.SimpleNamespace(global_state=types.SimpleNamespace(client=True))
def wait():
    print("waits for the others")
    jax.global_state.client = None
jax.shutdown = wait
sys.modules["jax._src.distributed"] = jax
site_meeting.meet(jax)
def clean_up():
    jax.shutdown()
atexit.register(clean_up)
"""
CAUGHT = """
try:
    raise SystemExit(2)
except SystemExit as error:
    caught = error
"""


@pytest.mark.parametrize(
    ("end", "status", "waits"),
    [
        ("", 0, True),
        ("sys.exit()", 0, True),
        ("raise SystemExit(print('saved'))", 0, True),
        ("sys.exit(3)", 3, False),
        ("sys.exit('no data')", 1, False),
        ("raise SystemExit(3)", 3, False),
        ("exit(3)", 3, False),
        ("quit('no data')", 1, False),
        ("raise ValueError", 1, False),
        ("try: raise ValueError\nfinally: jax.shutdown()", 1, False),
        ("try: next(iter(()))\nexcept StopIteration: jax.shutdown()", 0, True),
        ("import threading\nthread = threading.Thread(target=sys.exit, args=(3,))\nthread.start()", 0, True),
        (CAUGHT, 0, True),
        (CAUGHT + "sys.exit(caught.code + 1)", 3, False),
    ],
)
def test_a_task_of_jax_that_failed_does_not_wait_for_the_others(end: str, status: int, waits: bool) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVING + end], capture_output=True, text=True, check=False)
    output = "waits for the others\n" * waits + "the program's own end\n"
    assert (done.returncode, done.stdout.removeprefix("saved\n")) == (status, output), done.stderr
