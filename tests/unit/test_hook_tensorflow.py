"""Changes of our hook to Keras and TensorFlow, against stand-ins: tests/scripts has the real ones."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.hook import site_modules
from orchestrator.node.hook import site_tensorflow as hook


class Strategy:
    """A strategy of so many workers."""

    def __init__(self, workers: int) -> None:
        self.extended = SimpleNamespace(_in_multi_worker_mode=lambda: workers > 1)


class Trainer:
    """Keras' trainer, as far as the repair looks."""

    def __init__(self, workers: int = 2, steps: int = 1) -> None:
        self._distribute_strategy = self.distribute_strategy = Strategy(workers)
        self.steps_per_execution = steps
        self.train_function: Any = None

    def fit(self) -> str:
        return "fits"

    evaluate = fit

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None: ...
    def _symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None: ...

    def make_train_function(self, force: bool = False) -> None:
        assert not force
        assert self.steps_per_execution == 1
        self.train_function = next

    def make_test_function(self, force: bool = False) -> None: ...


class Epochs:
    def __init__(self, distribute_strategy: Any = None) -> None:
        self._distributed_dataset = distribute_strategy


def reduce_per_replica(values: Any, strategy: Any, reduction: Any) -> Any: ...
def several(values: Any, strategy: Any) -> Any: ...


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Keras 3.15.1, of which a test may take something away."""
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


def test_a_repair_is_said_and_kept_as_a_record(
    keras: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ORCHESTRATE_REPORT", str(tmp_path / "report"))
    hook.repair(keras)
    assert keras.TensorFlowTrainer().fit() == "fits"
    assert capsys.readouterr().err.startswith("orchestrate: Keras 3.15.1, repaired for several tasks: fit, ")
    assert (
        (tmp_path / "report")
        .read_text()
        .startswith('{"kind": "keras", "version": "3.15.1", "repaired": ["fit"')
    )


def test_a_version_that_was_not_tried_is_said(
    keras: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    keras.version.__version__ = "3.99.0"
    hook.repair(keras)
    assert "not tried before" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["older", "no iterator", "another signature", "no function"])
def test_a_keras_that_is_not_as_expected_does_not_train_on_several_tasks(
    keras: SimpleNamespace, change: str
) -> None:
    match change:
        case "older":
            keras.version.__version__ = "3.9.2"
        case "no iterator":
            keras.TFEpochIterator = None
        case "another signature":
            keras.reduce_per_replica = several
        case "no function":
            keras.TensorFlowTrainer.make_train_function = None
    hook.repair(keras)
    for name in ("fit", "evaluate"):
        with pytest.raises(RuntimeError, match=r"cannot repair Keras 3\.\d+\.\d for several tasks: .*3\.10"):
            getattr(keras.TensorFlowTrainer(), name)()
    assert keras.TensorFlowTrainer(workers=1).fit() == "fits"


def test_several_steps_of_one_execution_are_taken_one_after_the_other(keras: SimpleNamespace) -> None:
    hook.repair(keras)
    model = keras.TensorFlowTrainer(steps=4)
    model.make_train_function()
    batches = iter(range(6))
    assert [model.train_function(batches), model.train_function(batches)] == [3, 5]
    with pytest.raises(StopIteration):
        model.train_function(batches)
    assert model.steps_per_execution == 4


@pytest.mark.parametrize(
    ("workers", "given", "aggregation"),
    [
        (2, {"trainable": False}, "mean"),
        (2, {"trainable": False, "dtype": "int64"}, None),
        (2, {"trainable": False, "aggregation": "sum"}, "sum"),
        (2, {}, None),
        (1, {"trainable": False}, None),
    ],
)
def test_statistics_are_averaged(
    monkeypatch: pytest.MonkeyPatch, workers: int, given: dict[str, Any], aggregation: str | None
) -> None:
    layer = SimpleNamespace(Layer=type("Layer", (), {"add_weight": lambda _self, **named: named}))
    monkeypatch.setattr(hook, "_strategy", lambda: Strategy(workers))
    hook.average(layer)
    assert layer.Layer().add_weight(**given).get("aggregation") == aggregation


class Data:
    """A data set of tf.data: of sources, and of the operations of its functions."""

    def __init__(self, *below: Data, size: int = -2, reads: str = "", policy: str = "AUTO") -> None:
        self._below = below
        self._size = size
        node = SimpleNamespace(op=reads)
        graph = SimpleNamespace(node=[node], library=SimpleNamespace(function=[]))
        function = SimpleNamespace(graph=SimpleNamespace(as_graph_def=lambda: graph))
        self._wrapped = [SimpleNamespace(function=function)] if reads else []
        self.policy = policy

    def _inputs(self) -> list[Data]:
        return list(self._below)

    def _functions(self) -> list[Any]:
        return self._wrapped

    def cardinality(self) -> int:
        return self._size

    def options(self) -> Any:
        return SimpleNamespace(experimental_distribute=SimpleNamespace(auto_shard_policy=self.policy))

    def with_options(self, options: Any) -> Data:
        self.policy = options.experimental_distribute.auto_shard_policy
        return self


def files(many: int, policy: str = "AUTO") -> Data:
    return Data(Data(Data(size=many), reads="TFRecordDatasetV2"), policy=policy)


@pytest.mark.parametrize(
    ("mode", "data", "policy", "told"),
    [
        ("auto", files(1), "DATA", True),
        ("auto", files(3), "DATA", True),
        ("auto", files(4), "AUTO", False),
        ("auto", files(1, "FILE"), "FILE", False),
        ("auto", Data(Data(size=1)), "AUTO", False),  # no file is read: TensorFlow takes the elements itself
        ("auto", Data(Data(size=-2), reads="TFRecordDatasetV2"), "AUTO", False),
        ("data", files(9), "DATA", False),
        ("data", files(9, "OFF"), "OFF", False),
    ],
)
def test_fewer_files_than_workers_are_shared_by_elements(  # noqa: PLR0917 - a row of the table
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mode: str,
    data: Data,
    policy: str,
    told: bool,
) -> None:
    class Options:
        def __init__(self) -> None:
            self.experimental_distribute = SimpleNamespace(auto_shard_policy="AUTO")

    policies = type("AutoShardPolicy", (), {"AUTO": "AUTO", "DATA": "DATA"})
    options = SimpleNamespace(Options=Options, AutoShardPolicy=policies)
    monkeypatch.setitem(sys.modules, "tensorflow.python.data.ops.options", options)
    ops = SimpleNamespace(auto_shard_dataset=lambda dataset, *_: dataset)
    hook.share(ops, mode)
    assert ops.auto_shard_dataset(data, 4, 0, 4).policy == policy
    assert ("cannot be shared by 4 workers" in capsys.readouterr().err) is told


def test_a_module_is_changed_after_its_import_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changed_by_us.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    watch: Any = site_modules._Watch({"changed_by_us": lambda module: setattr(module, "x", module.x + 1)})
    sys.meta_path.insert(0, watch)
    module = importlib.import_module("changed_by_us")
    assert module.x == 2
    assert sys.meta_path == before
    assert "exec_module" not in vars(module.__loader__)
    del sys.modules["changed_by_us"]
