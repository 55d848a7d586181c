"""What computes before the strategy is made. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from orchestrator.findings import codes
from orchestrator.findings.flow import Step
from orchestrator.findings.look import Finding, Scene, each_strategy
from orchestrator.findings.sourcefile import SourceFile
from orchestrator.findings.syntax import argument

# Each of these made TensorFlow 2.21 initialize its context, after which the strategy is refused.
_COMPUTE = frozenset(
    f"tensorflow.{name}"
    for name in [
        "constant",
        "Variable",
        "zeros",
        "ones",
        "range",
        "convert_to_tensor",
        "cast",
        "one_hot",
        "reshape",
        "expand_dims",
        "eye",
        "stack",
        "concat",
        "fill",
        "linspace",
        "random.normal",
        "random.uniform",
        "random.truncated_normal",
        "random.shuffle",
        "random.Generator.from_seed",
        "reduce_sum",
        "matmul",
        "square",
        "io.read_file",
        "summary.create_file_writer",
        "lookup.KeyValueTensorInitializer",
        "data.Dataset.from_tensor_slices",
        "data.Dataset.range",
        "data.Dataset.list_files",
        "data.Dataset.from_generator",
        "data.Dataset.from_tensors",
        "data.TFRecordDataset",
        "data.TextLineDataset",
        "config.list_logical_devices",
    ]
)
_LOADS = frozenset(("tensorflow_datasets.load",))
# Keras 2 and 3 both make variables for these as they are made; for these layers, once they are called; and
# for a Sequential that is told what comes in, where one of its layers has weights.
_KERAS = r"(?:tensorflow\.|tf_)?keras\."
_BUILDS = re.compile(
    _KERAS + r"(?:(?:optimizers|metrics|applications)\.[A-Z]\w+|layers\.(?:TextVectorization|\w+Lookup))$"
)
_WEIGHTS = re.compile(
    _KERAS + r"layers\.(?:Dense|Embedding|\w*Conv\w+|\w*(?:LSTM|GRU|RNN)|(?:Batch|Layer|Group)Normalization)$"
)
_SEQUENTIAL = re.compile(_KERAS + r"(?:models\.)?Sequential$")
_INPUT = re.compile(_KERAS + r"(?:layers\.)?Input(?:Layer)?$")
_SHAPES = frozenset(("input_shape", "input_dim"))
_GRAPHS = ("disable_v2_behavior", "disable_eager_execution", ".Graph(")  # there, tensors are only planned


def early(scene: Scene) -> Iterator[Finding]:
    """With one worker too: the strategy is refused whenever TF_CONFIG is set."""
    programs = [source for source in scene.sources if not source.imported]
    for source in programs:
        made = next(each_strategy(source), None)
        if made is None or any(word in source.text for word in _GRAPHS):
            continue
        line = source.steps[made].lineno
        before = [(source, step) for step in source.steps[:made]]
        if len(programs) == 1 and source.last_import < line:
            modules = (one for one in scene.sources if one.imported and not _plans(one))
            before += [(one, step) for one in modules for step in one.steps]
        for where, step in before:
            if name := _computes(where, step):
                of = "" if where is source else f" of {source.path}"
                yield Finding(
                    codes.EARLY,
                    f"{name} computes before the strategy of line {line}{of} is made: "
                    '"Collective ops must be configured at program startup"',
                    "make the strategy first",
                    *where.at(step),
                )
                break


def _plans(source: SourceFile) -> bool:
    """Whether it may only plan its tensors, or makes a strategy of its own before them."""
    return source.names("MultiWorkerMirroredStrategy") or any(word in source.text for word in _GRAPHS)


def _computes(source: SourceFile, step: Step) -> str:
    """The name of what initializes TensorFlow's context there; "" for what need not."""
    name = _name(source, step)
    if name in _COMPUTE | _LOADS or _BUILDS.match(name):
        return name
    if not isinstance(step, ast.Call):
        return ""
    if isinstance(step.func, ast.Call):  # a layer that is called where it is made
        made = _name(source, step.func)
        return made if _WEIGHTS.match(made) else ""
    layers = argument(step, 0, "layers") if _SEQUENTIAL.match(name) else None
    return name if isinstance(layers, ast.List | ast.Tuple) and _is_built(source, layers.elts) else ""


def _is_built(source: SourceFile, layers: list[ast.expr]) -> bool:
    """Whether a Sequential of these layers makes its variables at once."""
    made = [one for one in layers if isinstance(one, ast.Call)]
    known = any(
        _INPUT.match(_name(source, one)) or _SHAPES & {word.arg for word in one.keywords} for one in made
    )
    return known and any(_WEIGHTS.match(_name(source, one)) for one in made)


def _name(source: SourceFile, node: ast.AST) -> str:
    return source.called(node).replace(".compat.v2.", ".", 1)
