"""A Python program and the modules beside it that it imports. Pure but for the reader it is given."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from orchestrator.program.texts import parsed

MOST = 200  # files


def closure(path: str, read: Callable[[str], str | None]) -> Iterator[tuple[str, str]]:
    """(path, text) of the program at `path` and of what it imports from its folder or the root, each once."""
    waiting, seen, count = [path], {path}, 0
    while waiting and count < MOST:
        here = waiting.pop(0)
        text = read(here)
        if text is None:
            continue
        count += 1
        yield here, text
        for candidate in _imported(text, here, path):
            if candidate not in seen:
                seen.add(candidate)
                waiting.append(candidate)


def surely(path: str, texts: Mapping[str, str], *, module: bool = False) -> frozenset[str]:
    """Those of a closure that are imported whenever the program at `path` runs: no `if` stands above.

    Python looks beside a script, and for `python -m` (`module`) in the folder where it is started.
    """
    main = "" if module else path
    found, waiting = {path}, [path]
    while waiting:
        here = waiting.pop()
        for candidate in _imported(texts[here], here, main, only=True):
            if candidate in texts and candidate not in found:
                found.add(candidate)
                waiting.append(candidate)
    return frozenset(found)


def _plain(tree: ast.Module) -> Iterator[ast.AST]:
    waiting: list[ast.stmt] = [*tree.body]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.With | ast.Try) or (
            isinstance(node, ast.FunctionDef) and node.name == "main"
        ):
            waiting.extend(node.body)


def _imported(text: str, here: str, main: str, *, only: bool = False) -> Iterator[str]:
    """Where the modules that a text imports may lie; most of these files do not exist.

    `only` those that it surely imports, where Python looks for them first.
    """
    try:
        tree = parsed(text)
    except (MemoryError, RecursionError, SyntaxError, ValueError):
        return
    beside = main.rpartition("/")[0]
    for node in _plain(tree) if only else ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(beside, alias.name, only)
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            base = beside if node.level == 0 else _above(here, node.level)
            parts = [node.module] if node.module else []
            yield from _files(base, ".".join(parts), only)
            for name in names:
                yield from _files(base, ".".join((*parts, name)), only)


def _files(folder: str, module: str, only: bool) -> Iterator[str]:
    if not module:
        return
    for base in {folder} if only else {folder, ""}:
        parts = module.split(".")
        for length in range(1, len(parts) + 1):
            path = "/".join(filter(None, (base, *parts[:length])))
            yield f"{path}.py"
            yield f"{path}/__init__.py"


def _above(here: str, level: int) -> str:
    return "/".join(here.split("/")[:-level])
