"""What a program's data tell: files that are fewer than workers, batches that do not divide."""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Iterator

from orchestrator.findings import codes
from orchestrator.findings.look import Finding, Scene
from orchestrator.findings.programs import Rule
from orchestrator.findings.sourcefile import SourceFile
from orchestrator.findings.syntax import argument, dotted, keyword, text

# Of tensorflow-datasets those whose training part is one file.
_ONE_FILE = frozenset(
    [
        "mnist",
        "fashion_mnist",
        "kmnist",
        "emnist",
        "cifar10",
        "cifar100",
        "iris",
        "titanic",
        "imdb_reviews",
        "penguins",
        "wine_quality",
    ]
)
_FILES = ("TFRecordDataset", "TextLineDataset")
_POLICY = re.compile(
    r"auto_?shard_?policy|distribute_datasets_from_function|input_context|even_splits|\.shard\(",
    re.IGNORECASE,
)
_SHARES = ("fit", "experimental_distribute_dataset")  # what divides a data set among workers
_READS = ("list", "iter", "next", "enumerate", "sorted", "set", "tuple", "sum")
_OWN_BATCHES = ("distribute_datasets_from_function", "DatasetCreator", "dataset_fn", "InputContext")


def files(scene: Scene) -> Iterator[Finding]:
    if not scene.spread or scene.sharded or any(_POLICY.search(one.text) for one in scene.sources):
        return
    called = {dotted(call.func).rpartition(".")[2] for one in scene.sources for call in one.calls}
    if not called & {*_SHARES}:
        return
    for source in scene.sources:
        for call in source.plain_calls:
            found = _files_of(scene, source, call) if id(call) not in _read(source) else None
            if found is None or found[1] >= scene.workers:
                continue
            what, many = found
            are = "are one file" if many == 1 else f"are {many} files"
            yield Finding(
                codes.FILES,
                f"the data of {what} {are}, which {scene.workers} workers cannot share file by file",
                'remove `auto_shard = "off"` under [job], so that each reads all and keeps its part; or'
                " AutoShardPolicy.DATA or OFF in the program, or write the data in more files",
                *source.at(call),
            )


def batch(scene: Scene) -> Iterator[Finding]:
    if not scene.spread or any(word in one.text for one in scene.sources for word in _OWN_BATCHES):
        return
    for source in scene.sources:
        for call in source.plain_calls:
            name = dotted(call.func).rpartition(".")[2]
            if name not in _SHARES:
                continue
            size = source.number(keyword(call, "batch_size"))
            if size is None:
                size = _batch_of(source, argument(call, 0, "x"))
            if size is not None and size % scene.workers:
                yield Finding(
                    codes.BATCH,
                    f"a batch of {size} is not shared equally by {scene.workers} workers: in each step some"
                    " wait for others",
                    f"choose a multiple of {scene.workers}, or {size} for each: {size * scene.workers}",
                    *source.at(call),
                )


RULES: tuple[Rule, ...] = (files, batch)


def _read(source: SourceFile) -> frozenset[int]:
    """The calls whose elements the program itself reads: `for line in TextLineDataset("words.txt")`."""
    read: list[ast.expr] = []
    shared: set[str] = set()
    for node in source.nodes:
        match node:
            case ast.For(iter=over) | ast.comprehension(iter=over):
                read.append(over)
            case ast.Call(func=ast.Attribute(attr="as_numpy_iterator" | "as_numpy" | "adapt")):
                read.append(node)
            case ast.Call(func=ast.Name(id=name)) if name in _READS or name == "as_numpy":
                read.append(node)
            case ast.Call(func=ast.Attribute(attr=name)) if name in _SHARES:
                shared.update(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
    names = {one.id for node in read if not _is_glance(node) for one in _roots(node)} - shared
    read += [value for name in names if (value := source.bound(name)) is not None]
    made = [[inner for inner in ast.walk(one) if isinstance(inner, ast.Call)] for one in read]
    return frozenset(
        id(call)
        for calls in made
        if not any(dotted(one.func).endswith(_SHARES) for one in calls)
        for call in calls
    )


def _is_glance(node: ast.expr) -> bool:
    """`for x in data.take(1)` shows what the data look like, before they are trained on."""
    return any(isinstance(one, ast.Attribute) and one.attr == "take" for one in ast.walk(node))


def _roots(node: ast.expr) -> list[ast.Name]:
    return [one for one in ast.walk(node) if isinstance(one, ast.Name)]


def _files_of(scene: Scene, source: SourceFile, call: ast.Call) -> tuple[str, int] | None:
    """What is loaded, and how many files it surely has; None where that cannot be known."""
    called = source.called(call)
    used = called.endswith(".load") or any(dotted(c.func).endswith("as_dataset") for c in source.calls)
    if called in ("tensorflow_datasets.load", "tensorflow_datasets.builder"):
        name = text(argument(call, 0, "name"))
        if name is None:
            return None
        if not used or isinstance(keyword(call, "batch_size"), ast.UnaryOp) or "as_numpy" in source.text:
            return None  # it is read into arrays
        folder = keyword(call, "data_dir")
        bare = re.split("[:/]", name)[0]
        if folder is not None:
            where = text(folder)
            many = _of_a_set(scene, where, bare) if where is not None else None
            return None if many is None else (f'tfds.{called.rpartition(".")[2]}("{name}")', many)
        return (f'tfds.{called.rpartition(".")[2]}("{name}")', 1) if bare in _ONE_FILE else None
    kind = called.rpartition(".")[2]
    if kind not in _FILES or not called.startswith("tensorflow."):
        return None
    given = argument(call, 0, "filenames")
    if isinstance(given, ast.Name):
        given = source.bound(given.id) if not _grows(source, given.id) else None
    if (one := text(given)) is not None:
        if re.search(r"[*?\[{%]", one):
            return None
        return f'{kind}("{one}")', 1
    if isinstance(given, ast.List | ast.Tuple) and all(text(one) is not None for one in given.elts):
        many = len(given.elts)
        return (f'{kind}(["{text(given.elts[0])}"{", ..." if many > 1 else ""}])', many) if many else None
    return None


def _grows(source: SourceFile, name: str) -> bool:
    """Whether a list gets more than what it was bound to: `files.append(path)`."""
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr in ("append", "extend", "insert")
        and dotted(call.func.value) == name
        for call in source.calls
    )


def _of_a_set(scene: Scene, folder: str, name: str) -> int | None:
    """The files of the part `train` of a set that is sent with the code."""
    beginning = posixpath.normpath(f"{folder}/{name}") + "/"
    infos = [
        path for path in scene.sent if path.startswith(beginning) and path.endswith("/dataset_info.json")
    ]
    if len(infos) != 1:
        return None
    try:
        told = json.loads(scene.read(infos[0]) or "")
        parts = {part["name"]: len(part["shardLengths"]) for part in told["splits"]}
    except (ValueError, TypeError, LookupError):
        return None
    return parts.get("train")


def _batch_of(source: SourceFile, node: ast.expr | None) -> int | None:
    """The batch size of a data set, followed through the names and methods that it is made by."""
    for _ in range(10):
        if isinstance(node, ast.Name):
            node = source.bound(node.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("batch", "padded_batch"):
                return source.number(argument(node, 0, "batch_size"))
            if node.func.attr in ("experimental_distribute_dataset", "rebatch", "unbatch"):
                return None  # the first is told where it is called
            node = node.func.value
        else:
            return None
    return None
