"""The words of the house, counted: docstrings that stand alone, names that say what they hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A docstring is a sentence with a subject or a verb and its object, and needs no line above it.
ELLIPSIS = re.compile(r"(What|Whether|Who|Those|The same|It|Its|Of|As)\b")
# No bare participle: a name says what it holds, `match` for `found`, `message` for `said`.
PARTICIPLES = frozenset({"found", "said", "told", "known", "wanted", "seen", "met", "left", "one", "asked"})
MOST_ELLIPSES = 0
MOST_PARTICIPLES = 740
# A commit that brings a rule to nothing sets its count to 0.


def trees(*parts: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(path for part in parts for path in (ROOT / part).rglob("*.py")):
        yield path, ast.parse(path.read_bytes())


def bindings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name


def test_docstrings_stand_alone() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
        for path, tree in trees("orchestrator", "worker_entry")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
        and ELLIPSIS.match(ast.get_docstring(node) or "")
    ]
    assert len(wrong) <= MOST_ELLIPSES, wrong


def test_names_say_what_they_hold() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {name}"
        for path, tree in trees("orchestrator")
        for node in ast.walk(tree)
        for name in bindings(node)
        if name in PARTICIPLES
    ]
    assert len(wrong) <= MOST_PARTICIPLES, wrong
