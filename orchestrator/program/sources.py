"""A Python program and the modules beside it that it imports, as syntax trees. Pure."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TypeAlias

from msgspec import Struct

from orchestrator.program import invocation

MOST = 200  # files
_IMPORT = re.compile(r"^\s*(?:import|from)\s+(\w+)", re.MULTILINE)
_BY_NAME = frozenset({"import_module", "__import__"})
Read: TypeAlias = Callable[[str], str | None]


def decoded(data: bytes) -> str:
    """Decode a text as Python reads it: in the encoding that its first lines declare, else UTF-8."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, LookupError, ValueError):
        text = data.decode("utf-8", "replace")
    return io.StringIO(text, None).read().removeprefix("\ufeff")


def parsed(text: str | bytes, name: str = "<unknown>") -> ast.Module:
    """Parse a program without its own warnings, such as of an invalid escape."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, name)


class SourceFile(Struct, frozen=True, dict=True):
    """A file of a program; `path` is relative to where the tasks run."""

    path: str
    text: str

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of its syntax tree; none of a text that this Python cannot read."""
        return tuple(ast.walk(self._tree))

    @cached_property
    def _tree(self) -> ast.Module:
        try:
            return parsed(self.text)
        except (MemoryError, RecursionError, SyntaxError, ValueError):
            return ast.Module([], [])

    @cached_property
    def statements(self) -> tuple[ast.stmt, ...]:
        """The statements at the top of the file, and those below `if __name__ == "__main__":` there."""
        return tuple(
            inner
            for one in self._tree.body
            for inner in (one.body if isinstance(one, ast.If) and "__name__" in ast.dump(one.test) else [one])
        )

    @cached_property
    def calls(self) -> tuple[ast.Call, ...]:
        return tuple(node for node in self.nodes if isinstance(node, ast.Call))

    @cached_property
    def _values(self) -> dict[str, list[ast.expr | None]]:
        """Values of each name; None for one that no plain assignment gave."""
        bound: dict[str, list[ast.expr | None]] = {}
        plain: set[int] = set()
        for node in self.nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=name) as target], value=value):
                    plain.add(id(target))
                    bound.setdefault(name, []).append(value)
                case ast.Name(id=name, ctx=ast.Store()) if id(node) not in plain:
                    bound.setdefault(name, []).append(None)
                case ast.arg(arg=name):
                    bound.setdefault(name, []).append(None)
        return bound

    def value(self, node: ast.expr | None) -> ast.expr | None:
        """Return the expression that a name stands for, where the file binds it once; others as they are."""
        if not isinstance(node, ast.Name):
            return node
        values = self._values.get(node.id, [])
        return values[0] if len(values) == 1 else None

    def number(self, node: ast.expr | None, depth: int = 10) -> int | None:
        """Return the whole number that an expression is, as far as names and products tell."""
        match self.value(node):
            case ast.Constant(value=int(number)) if depth:
                return number
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if depth:
                first, second = self.number(left, depth - 1), self.number(right, depth - 1)
                return None if first is None or second is None else first * second
        return None


def dotted(node: ast.AST) -> str:
    """Write names and attributes as `tf.data.Dataset`; "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else ""


def called(call: ast.Call) -> str:
    """Name what is called, without its module or object: `fit`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)


def text(node: ast.AST | None) -> str | None:
    """Return the value of a string that is written out."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    """Return an argument by its place or its name."""
    if len(call.args) > place and not any(isinstance(one, ast.Starred) for one in call.args):
        return call.args[place]
    return next((one.value for one in call.keywords if one.arg == name), None)


def read(command: Sequence[str], text_of: Read) -> tuple[SourceFile, ...]:
    """Read the program of a command, where that is Python or a shell runs it, and what it imports."""
    words = tuple(command)
    programs = invocation.in_shell(invocation.shell_text(words, text_of)) if words else ()
    files: dict[str, SourceFile] = {}
    for one in programs or (words,):
        module = invocation.module_name(one) if one else None
        name = invocation.program(one)
        if module is not None:
            path = module.replace(".", "/")
            name = next((end for end in (f"{path}.py", f"{path}/__main__.py") if text_of(end)), None)
        if name is not None and name.endswith(".py"):
            for path, content in closure(name, text_of):
                files.setdefault(path, SourceFile(path, content))
    return tuple(files.values())


def imports(content: str) -> Iterator[str]:
    """Yield the names of the packages and modules that a text imports from outside of its own package."""
    nodes = SourceFile("", content).nodes
    if len(nodes) == 1:  # the hosts may run a newer Python than this machine, whose syntax is then no mistake
        yield from (match[1] for match in _IMPORT.finditer(content))
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from (alias.name.split(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.split(".")[0]
            case ast.Call(args=[ast.Constant(value=str(module)), *_]) if called(node) in _BY_NAME:
                yield module.split(".")[0]


def modules(content: str) -> Iterator[str]:
    """Yield the dotted names that a text imports from outside of its own package, as far as it is Python."""
    for node in SourceFile("", content).nodes:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names if alias.name != "*")


def code(content: str) -> str:
    """Return a program without its comments and docstrings; other texts without what follows a `#`."""
    try:
        tree = parsed(content)
    except (MemoryError, RecursionError, SyntaxError, ValueError):
        return "\n".join(line.partition("#")[0] for line in content.split("\n"))
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [one for one in body if not _is_text(one)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def closure(path: str, text_of: Read) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of a program and of what it imports from its folder or the root, each once."""
    waiting, known, count = [path], {path}, 0
    while waiting and count < MOST:
        here = waiting.pop(0)
        content = text_of(here)
        if content is None:
            continue
        count += 1
        yield here, content
        for candidate in _imported(content, here, path.rpartition("/")[0]):
            if candidate not in known:
                known.add(candidate)
                waiting.append(candidate)


def _imported(content: str, here: str, beside: str) -> Iterator[str]:
    """Yield where the modules that a text imports may lie; most of these files do not exist."""
    for node in SourceFile(here, content).nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(beside, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = "/".join(here.split("/")[: -node.level]) if node.level else beside
            for alias in node.names:
                yield from _files(base, ".".join(filter(None, (node.module, alias.name))))


def _files(folder: str, module: str) -> Iterator[str]:
    parts = module.split(".")
    for base in {folder, ""}:
        for length in range(1, len(parts) + 1):
            path = "/".join(filter(None, (base, *parts[:length])))
            yield f"{path}.py"
            yield f"{path}/__init__.py"
