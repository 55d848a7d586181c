"""Paths of one machine that stand in a program: the hosts perhaps lack what is there. Pure.

Left out is what the program may only write, what it asks for first, and what an option or a variable of the
job stands in for.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator

from orchestrator.findings.sourcefile import SourceFile
from orchestrator.findings.syntax import argument, dotted, text
from orchestrator.program.paths import WRITTEN

_PATH = re.compile(r"(?:/|~/)[^\n\0]{1,300}")
_OF_THE_SYSTEM = re.compile(
    r"/(?:bin|boot|dev|etc|lib\w*|proc|run|sbin|sys|te?mp|usr|var/(?:log|te?mp|run))(?:/|$)"
)
_ASKS = re.compile(r"exists|isdir|isfile|is_dir|is_file|access")
_MAKES = re.compile(r"mkdir|makedirs|touch|unlink|remove|rmtree")
_SHOWS = frozenset(("print", "info", "warning", "error", "debug"))


def own(sources: Iterable[SourceFile], words: Collection[str]) -> dict[str, tuple[SourceFile, int]]:
    """Each absolute path, with the file and the line where it is read.

    `words` are the options of the command and the names of the job's environment: a path that is the default
    of one of them is not used.
    """
    found: dict[str, tuple[SourceFile, int]] = {}
    asked: set[str] = set()
    for source in sources:
        for value, line, around in _each(source.tree, ()) if source.tree is not None else ():
            if any(_ASKS.search(word) for word in around):
                asked.add(value)
            elif not any(_is_other(word, words) for word in around):
                found.setdefault(value, (source, line))
    return {value: place for value, place in found.items() if value not in asked}


def _is_other(word: str, given: Collection[str]) -> bool:
    """Whether what stands beside this word is written, or is not used."""
    return bool(WRITTEN.search(word) or _MAKES.search(word)) or word in given or f"--{word}" in given


def _each(node: ast.AST, around: tuple[str, ...]) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """(path, line, the words that it stands among: what is called, bound and given beside it)."""
    value = text(node)
    if value is not None:
        name = value.rstrip("/").rpartition("/")[2]
        if _PATH.fullmatch(value) and not _OF_THE_SYSTEM.match(value) and not WRITTEN.match(name):
            yield value, getattr(node, "lineno", 0), around
        return
    for child, words in _children(node):
        try:
            yield from _each(child, (*around, *words))
        except RecursionError:
            return


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, tuple[str, ...]]]:
    match node:
        case ast.Call(func=func):
            name = func.attr if isinstance(func, ast.Attribute) else dotted(func)
            yield func, (name,)
            yield from _of_call(node, name)
        case ast.Assign(targets=targets, value=value):
            yield value, tuple(dotted(one) for one in targets)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield value, (dotted(target),)
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                yield value, (text(key) or "",)
        case ast.Compare() | ast.Expr(value=ast.Constant()):
            return
        case _:
            for child in ast.iter_child_nodes(node):
                yield child, ()


def _of_call(call: ast.Call, name: str) -> Iterator[tuple[ast.AST, tuple[str, ...]]]:
    if name in _SHOWS:
        return
    words = [name]
    words += [said for arg in call.args if (said := text(arg)) is not None and not _PATH.fullmatch(said)]
    if name == "open" and not (text(argument(call, 1, "mode")) or "r").startswith("r"):
        words.append("write")
    for arg in call.args:
        yield arg, tuple(words)
    for one in call.keywords:
        yield one.value, (*words, one.arg or "")
