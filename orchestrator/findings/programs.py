"""What a program's statements tell: environment, order, strategies, what is written where."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from orchestrator.findings import codes
from orchestrator.findings.flow import Step
from orchestrator.findings.look import Finding, Scene, each_strategy
from orchestrator.findings.sourcefile import SourceFile
from orchestrator.findings.syntax import argument, dotted, text
from orchestrator.model import KerasHook, Role

Rule: TypeAlias = Callable[[Scene], Iterator[Finding]]

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
# Keras 2 and 3 both make variables for these.
_BUILDS = re.compile(r"(?:tensorflow\.|tf_)?keras\.(?:optimizers|metrics|applications)\.[A-Z]\w+$")
_GRAPHS = ("disable_v2_behavior", "disable_eager_execution", ".Graph(")  # there, tensors are only planned
_HARMLESS = frozenset(("num_replicas_in_sync", "cluster_resolver", "extended"))


def config(scene: Scene) -> Iterator[Finding]:
    several = sum(not source.imported for source in scene.sources) > 1  # of a shell script
    for source in scene.sources:
        if several and not source.imported and "Strategy" not in source.text:
            continue
        made = next((source.steps[place] for place in each_strategy(source)), None)
        before = source.certain[: source.certain.index(made)] if made in source.certain else source.certain
        written = [value for step in before if (value := _sets(source, step, "TF_CONFIG")) is not None]
        for step in before:
            value = _sets(source, step, "TF_CONFIG")
            if value is not None and not _comes_from(source, value, "TF_CONFIG"):
                yield Finding(
                    codes.CONFIG,
                    "the program replaces the TF_CONFIG that orchestrate sets: tasks may then wait for others"
                    " that never come",
                    "remove that line, or set TF_CONFIG only where it is not set yet",
                    source.path,
                    step.lineno,
                )
            elif scene.workers > 1 and _removes(source, step, "TF_CONFIG") and not written:
                yield Finding(
                    codes.CONFIG,
                    f"the program removes TF_CONFIG: each of the {scene.workers} workers then trains alone",
                    "remove that line, or launch on one host",
                    source.path,
                    step.lineno,
                )


def legacy(scene: Scene) -> Iterator[Finding]:
    if scene.plan.recipe.legacy_keras is None or (scene.workers < 2 and not scene.ps):
        return
    if not any(_is_method(call, "fit") for source in scene.sources for call in source.calls):
        return  # a loop of its own trains with either Keras
    for source in scene.sources:
        for step in source.certain:
            value = _sets(source, step, "TF_USE_LEGACY_KERAS")
            off = value is not None and text(value) not in (None, "1", "True", "true")
            if off or _removes(source, step, "TF_USE_LEGACY_KERAS"):
                yield Finding(
                    codes.LEGACY,
                    "the program turns off TF_USE_LEGACY_KERAS, which orchestrate sets: `fit` of Keras 3"
                    " fails on several tasks",
                    "remove that line; for Keras 3 write `import keras` throughout: orchestrate corrects it",
                    source.path,
                    step.lineno,
                )


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
            name = where.called(step).replace(".compat.v2.", ".", 1)
            if name in _COMPUTE | _LOADS or _BUILDS.match(name):
                of = "" if where is source else f" of {source.path}"
                yield Finding(
                    codes.EARLY,
                    f"{name} computes before the strategy of line {line}{of} is made: "
                    '"Collective ops must be configured at program startup"',
                    "make the strategy first",
                    where.path,
                    step.lineno,
                )
                break


def _plans(source: SourceFile) -> bool:
    """Whether it may only plan its tensors, or makes a strategy of its own before them."""
    return source.names("MultiWorkerMirroredStrategy") or any(word in source.text for word in _GRAPHS)


def saving(scene: Scene) -> Iterator[Finding]:
    """Where a host has several tasks, or hosts turn out to share their folders: the tasks' folder is one."""
    crowds = [
        host.name
        for host in scene.plan.hosts
        if sum(t.host == host.name and t.id.role in (Role.CHIEF, Role.WORKER) for t in scene.plan.tasks) > 1
    ]
    moves = any("chdir" in source.text for source in scene.sources)
    if not scene.spread or moves or not (crowds or scene.one_folder):
        return
    who = f"those of {crowds[0]} share their folder" if crowds else "these hosts share their working folder"
    for source in scene.sources:
        fitted = {_receiver(call) for call in source.calls if _is_method(call, "fit")}
        for step in source.certain:
            path = _saved(source, step, fitted, scene.plan.recipe.keras is KerasHook.MEND)
            if path:
                yield Finding(
                    codes.SAVING,
                    f"all tasks write {path}, and {who}",
                    "name the task in the path, as orchestrate's ORCHESTRATE_TASK or the resolver's task_id"
                    " tells it",
                    source.path,
                    step.lineno,
                )


def servers(scene: Scene) -> Iterator[Finding]:
    joined = "\n".join(source.text for source in scene.sources)
    if not scene.ps or "Server(" in joined or "task_type" in joined or "TF_CONFIG" in joined:
        return
    for source in scene.sources:
        for step in source.steps:
            called = source.called(step)
            if called.endswith(".ParameterServerStrategy") and ".v1." not in called:  # that of estimators
                yield Finding(
                    codes.SERVERS,
                    "every task makes a ParameterServerStrategy, which only the chief may: the others fail"
                    " with a port that is taken",
                    "let workers and ps start a tf.distribute.Server and join() it",
                    source.path,
                    step.lineno,
                )


def unused(scene: Scene) -> Iterator[Finding]:
    """A strategy whose scope nobody enters: each task then trains a model of its own."""
    if not scene.spread or any(_may_enter(source) for source in scene.sources):
        return
    for source in scene.sources:
        for step in source.steps:
            if not isinstance(step, ast.Assign) or len(step.targets) != 1:
                continue
            name = dotted(step.targets[0]) if isinstance(step.targets[0], ast.Name) else ""
            value: ast.AST = step.value
            made = source.called(value).endswith(".MultiWorkerMirroredStrategy")
            if made and name and not any(_is_used(one, name, one is source) for one in scene.sources):
                yield Finding(
                    codes.UNUSED,
                    f"nothing uses the strategy {name}: each of the {scene.workers} workers trains alone",
                    f"build and compile the model inside `with {name}.scope():`",
                    source.path,
                    step.lineno,
                )


RULES: tuple[Rule, ...] = (config, legacy, early, saving, servers, unused)


def _sets(source: SourceFile, step: Step, name: str) -> ast.expr | None:
    """The value that a statement gives to a variable of the environment."""
    if isinstance(step, ast.Assign):
        return step.value if any(_is_variable(source, one, name) for one in step.targets) else None
    if not isinstance(step, ast.Call):
        return None
    if source.called(step) == "os.environ.update":  # os.putenv is not seen by os.environ
        for one in step.args:
            if isinstance(one, ast.Dict):
                pairs = zip(one.keys, one.values, strict=True)
                return next((value for key, value in pairs if text(key) == name), None)
        return next((one.value for one in step.keywords if one.arg == name), None)
    return None


def _removes(source: SourceFile, step: Step, name: str) -> bool:
    if isinstance(step, ast.Delete):
        return any(_is_variable(source, one, name) for one in step.targets)
    popped = source.called(step) == "os.environ.pop"
    return popped and isinstance(step, ast.Call) and text(argument(step, 0, "key")) == name


def _comes_from(source: SourceFile, value: ast.expr, name: str) -> bool:
    """Whether a value is made of a text, such as the name of a variable: also through names bound to it."""
    waiting = [value]
    known: set[tuple[str, int]] = set()
    while waiting:
        made = waiting.pop()
        for node in ast.walk(made):
            if text(node) == name:
                return True
            if isinstance(node, ast.Name) and (node.id, made.lineno) not in known:
                known.add((node.id, made.lineno))
                # A line below may read what this one writes, as in the tutorial.
                waiting += [one for one in source.values(node.id) if one.lineno < made.lineno]
                waiting += source.given(node.id)
    return False


def _is_variable(source: SourceFile, node: ast.AST, name: str) -> bool:
    if not isinstance(node, ast.Subscript):
        return False
    key: ast.AST | None = node.slice
    if isinstance(key, ast.Name):
        key = source.bound(key.id)
    if text(key) != name:
        return False
    first, dot, rest = dotted(node.value).partition(".")
    return source.modules.get(first, first) + dot + rest == "os.environ"


def _is_method(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


def _receiver(call: ast.Call) -> str:
    """`model` of `model.fit(...)`."""
    return dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _saved(source: SourceFile, step: Step, models: set[str], keras_3: bool) -> str | None:
    """The path, written out, that a statement makes every task write."""
    if not isinstance(step, ast.Call) or not isinstance(step.func, ast.Attribute | ast.Name):
        return None
    name = source.called(step).rpartition(".")[2]
    if name in ("save", "save_weights") and isinstance(step.func, ast.Attribute):
        return text(argument(step, 0, "filepath")) if _receiver(step) in models - {""} else None
    if name == "ModelCheckpoint" and keras_3:  # that of tf_keras writes elsewhere where it is no chief
        return text(argument(step, 0, "filepath"))
    if name == "BackupAndRestore" and keras_3:
        return text(argument(step, 0, "backup_dir"))
    return None


def _may_enter(source: SourceFile) -> bool:
    return source.names("scope") or (source.tree is None and "scope" in source.text)


def _is_used(source: SourceFile, name: str, own: bool) -> bool:
    """In its own file or, by an import, in another: `from it import strategy`, `it.strategy.run(...)`."""
    if not own:
        return any(
            (isinstance(node, ast.Attribute) and node.attr == name)
            or (isinstance(node, ast.alias) and node.name in (name, "*"))
            for node in source.nodes
        )
    harmless = {
        id(node.value) for node in source.nodes if isinstance(node, ast.Attribute) and node.attr in _HARMLESS
    }
    return any(
        isinstance(node, ast.Name | ast.Attribute)
        and dotted(node) == name
        and isinstance(node.ctx, ast.Load)
        and id(node) not in harmless
        for node in source.nodes
    )
