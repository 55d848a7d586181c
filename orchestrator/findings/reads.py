"""Paths that stand in a program: the hosts perhaps lack what is there on this machine. Pure.

Left out is what the program may only write, what it asks for first, and what an option or a variable of the
job stands in for.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchestrator.findings.sourcefile import SourceFile
from orchestrator.findings.syntax import argument, dotted, text
from orchestrator.program.paths import WRITTEN

_ABSOLUTE = re.compile(r"(?:/|~/)[^\n\0]{1,300}")
_RELATIVE = re.compile(r"[^\s/~:\0][^\n:\0]{0,300}")
_FILE = re.compile(r".*\.\w{1,8}", re.DOTALL)
_READS = re.compile(r"read|load|open|listdir|scandir|walk|glob|from_dir|Path$|^join$")
_OF_THE_SYSTEM = re.compile(
    r"/(?:bin|boot|dev|etc|lib\w*|proc|run|sbin|sys|te?mp|usr|var/(?:log|te?mp|run))(?:/|$)"
)
_WILD = re.compile(r"(?:^|/)[^/]*[*?\[{%].*", re.DOTALL)  # from there on it is a pattern
_ASKS = re.compile(r"exists|isdir|isfile|is_dir|is_file|access")
_MAKES = re.compile(r"mkdir|makedirs|touch|unlink|remove|rmtree")
_SHOWS = frozenset(("print", "info", "warning", "error", "debug"))


@dataclass(frozen=True)
class Reading:
    """A path, and where it is read."""

    path: str
    source: SourceFile
    line: int


def each(sources: Iterable[SourceFile], words: Collection[str]) -> tuple[Reading, ...]:
    """Each path that is read, once.

    `words` are the options of the command and the names of the job's environment: a path that is the default
    of one of them is not used.
    """
    found: dict[str, Reading] = {}
    asked: set[str] = set()
    for source in sources:
        for value, line, around in _each(source.tree, ()) if source.tree is not None else ():
            if any(_ASKS.search(word) for word in around):
                asked.add(value)
            elif not any(_is_other(word, words) for word in around):
                found.setdefault(value, Reading(value, source, line))
    return tuple(one for value, one in found.items() if value not in asked)


def _is_path(value: str, around: tuple[str, ...]) -> bool:
    """Whether a text is one, as far as it tells, that is not an output's."""
    if any(WRITTEN.match(part) for part in value.split("/")):
        return False
    if _ABSOLUTE.fullmatch(value):
        return not _OF_THE_SYSTEM.match(value)
    named = "/" in value or _FILE.fullmatch(value) or any(_READS.search(word) for word in around)
    return bool(named and _RELATIVE.fullmatch(value) and set(PurePosixPath(value).parts) - {".."})


def _is_other(word: str, given: Collection[str]) -> bool:
    """Whether what stands beside this word is written, or is not used."""
    return bool(WRITTEN.search(word) or _MAKES.search(word)) or word in given or f"--{word}" in given


def _each(node: ast.AST, around: tuple[str, ...]) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """(path, line, the words that it stands among: what is called, bound and given beside it)."""
    value = text(node)
    if value is not None:
        path = _WILD.split(value, maxsplit=1)[0] or "."
        if _is_path(path, around):
            yield path, getattr(node, "lineno", 0), around
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
            if not dotted(func).startswith("sys.path."):  # of code, and not of data
                yield from _of_call(node, name)
        case ast.Assign(targets=targets, value=value):
            yield value, tuple(dotted(one) for one in targets)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield value, (dotted(target),)
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                yield value, (text(key) or "",)
        case ast.JoinedStr(values=[ast.Constant() as first, *_]):
            yield first, ()
        case ast.JoinedStr() | ast.Compare() | ast.Expr(value=ast.Constant()):
            return
        case _:
            for child in ast.iter_child_nodes(node):
                yield child, ()


def _of_call(call: ast.Call, name: str) -> Iterator[tuple[ast.AST, tuple[str, ...]]]:
    if name in _SHOWS:
        return
    words = [name]
    words += [said for arg in call.args if (said := text(arg)) is not None and not _ABSOLUTE.fullmatch(said)]
    if name == "open" and not (text(argument(call, 1, "mode")) or "r").startswith("r"):
        words.append("write")
    for arg in call.args[:1] if name == "open" else call.args:
        yield arg, tuple(words)
    for one in call.keywords:
        yield one.value, (*words, one.arg or "")
