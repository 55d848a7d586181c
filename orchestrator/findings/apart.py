"""What leaves each worker to train alone, though several were launched. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from orchestrator.findings import codes
from orchestrator.findings.look import Finding, Scene
from orchestrator.findings.sourcefile import SourceFile
from orchestrator.findings.syntax import dotted

_HARMLESS = frozenset(("num_replicas_in_sync", "cluster_resolver", "extended"))
# Whatever may join tasks, or tell them apart on purpose: of a program with a word of these nothing is said.
_JOINS = re.compile(
    r"MultiWorker|ParameterServer|CollectiveAllReduce|TPUStrategy|TF_CONFIG|Cluster(?:Resolver|Spec)|ORCHESTRATE_"
    r"|\bServer\(|dtensor|(?:Data|Model)Parallel|distribut(?:e|ion)_utils|get_distribution_strategy|collective_ops"
    r"|horovod|byteps|mpi4py|torch|jax|gethostname|HOSTNAME",
    re.IGNORECASE,
)
_TRAINS = re.compile(r"\bkeras\b|GradientTape")


def unused(scene: Scene) -> Iterator[Finding]:
    """A strategy whose scope nobody enters."""
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
                    f"nothing uses the strategy `{name}`: each of {scene.workers} workers trains alone",
                    f"build and compile the model inside `with {name}.scope():`",
                    *source.at(step),
                )


def alone(scene: Scene) -> Iterator[Finding]:
    """A training that knows of no other task: a strategy for one machine, or none."""
    if scene.workers < 2 or scene.ps or any(_JOINS.search(source.text) for source in scene.sources):
        return
    trains = [
        (source, call)
        for source in scene.sources
        if _TRAINS.search(source.text)
        for call in source.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("fit", "GradientTape")
    ]
    if not trains:
        return
    said = f"each of the {scene.workers} workers trains a model of its own, on all of the data"
    for source in scene.sources:
        for call in source.calls:
            if source.called(call).endswith(".MirroredStrategy"):
                yield Finding(
                    codes.ALONE,
                    f"MirroredStrategy joins the devices of one machine: {said}",
                    "write MultiWorkerMirroredStrategy in its place",
                    *source.at(call),
                )
                return
    source, call = trains[0]
    yield Finding(
        codes.ALONE,
        f"nothing joins the tasks: {said}",
        "build and compile the model in the scope of a tf.distribute.MultiWorkerMirroredStrategy(), or launch"
        " on one host with --only",
        *source.at(call),
    )


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
