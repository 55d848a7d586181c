"""What a program's statements tell: environment, order, strategies, what is written where."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from typing import TypeAlias

from orchestrator.findings import codes
from orchestrator.findings.apart import alone, unused
from orchestrator.findings.early import early
from orchestrator.findings.flow import Step
from orchestrator.findings.look import Finding, Scene, each_strategy
from orchestrator.findings.sourcefile import SourceFile
from orchestrator.findings.syntax import argument, dotted, text
from orchestrator.model import Role

Rule: TypeAlias = Callable[[Scene], Iterator[Finding]]


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
                    *source.at(step),
                )
            elif scene.workers > 1 and _removes(source, step, "TF_CONFIG") and not written:
                yield Finding(
                    codes.CONFIG,
                    f"the program removes TF_CONFIG: each of the {scene.workers} workers then trains alone",
                    "remove that line, or launch on one host",
                    *source.at(step),
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
                    "remove that line; for Keras 3 write `import keras` throughout: orchestrate repairs it",
                    *source.at(step),
                )


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
        for path, line in _each_saved(source, scene.plan.recipe.legacy_keras is None):
            yield Finding(
                codes.SAVING,
                f"all tasks write {path}, and {who}",
                "write the task's number into the path: `strategy.cluster_resolver.task_id`, or `index` in"
                " TF_CONFIG",
                source.path,
                line,
            )


def backup(scene: Scene) -> Iterator[Finding]:
    """Where hosts turn out to have a folder each: BackupAndRestore of tf_keras is kept by the chief."""
    restarts, hosts = scene.plan.restarts, {task.host for task in scene.plan.tasks}
    moves = any("chdir" in source.text for source in scene.sources)
    copied = not restarts.most or restarts.backup is not None
    keras_3 = scene.plan.recipe.legacy_keras is None
    if not scene.spread or not scene.apart or len(hosts) < 2 or moves or copied or keras_3:
        return
    for source in scene.sources:
        for step in source.certain:
            if isinstance(step, ast.Call) and source.called(step).endswith(".BackupAndRestore"):
                path = text(argument(step, 0, "backup_dir"))
                if path and not path.startswith(("/", "~")) and "://" not in path:
                    yield Finding(
                        codes.BACKUP,
                        f"{scene.plan.tasks[0].id} alone keeps {path}: after a restart the others begin anew,"
                        " and fail",
                        f"name it as `backup` under [job], and it is copied to all: {json.dumps(path)}",
                        *source.at(step),
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
                    *source.at(step),
                )


RULES: tuple[Rule, ...] = (config, legacy, early, saving, backup, servers, unused, alone)


def _sets(source: SourceFile, step: Step, name: str) -> ast.expr | None:
    """The value that a statement gives to a variable of the environment."""
    if isinstance(step, ast.Assign):
        return step.value if any(_is_variable(source, one, name) for one in step.targets) else None
    if isinstance(step, ast.AugAssign):
        adds = isinstance(step.op, ast.BitOr) and _is_environ(source, step.target)
        return _of_dict(step.value, name) if adds else None
    if not isinstance(step, ast.Call):
        return None
    if source.called(step) == "os.environ.update":  # os.putenv is not seen by os.environ
        given = (_of_dict(one, name) for one in step.args)
        named = (one.value for one in step.keywords if one.arg == name)
        return next((one for one in (*given, *named) if one is not None), None)
    return None


def _of_dict(node: ast.expr, name: str) -> ast.expr | None:
    """The value of a key in a dict that is written out."""
    pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    return next((value for key, value in pairs if text(key) == name), None)


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
    return _is_environ(source, node.value)


def _is_environ(source: SourceFile, node: ast.AST) -> bool:
    first, dot, rest = dotted(node).partition(".")
    return source.modules.get(first, first) + dot + rest == "os.environ"


def _is_method(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


def _receiver(call: ast.Call) -> str:
    """`model` of `model.fit(...)`."""
    return dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _each_saved(source: SourceFile, keras_3: bool) -> Iterator[tuple[str, int]]:
    """The paths, written out, that every task writes, with their lines."""
    fitted = {_receiver(call) for call in source.calls if _is_method(call, "fit")}
    managers: dict[str, str] = {}
    for step in source.certain:
        if path := _saved(source, step, fitted, keras_3):
            yield path, step.lineno
        if isinstance(step, ast.Assign) and isinstance(made := step.value, ast.Call):
            manages = source.called(made).endswith(".train.CheckpointManager")
            if manages and (path := text(argument(made, 1, "directory"))):
                managers.update((dotted(one), path) for one in step.targets)
    for call in source.plain_calls:
        if _is_method(call, "save") and (path := managers.get(_receiver(call))):
            yield path, call.lineno


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
