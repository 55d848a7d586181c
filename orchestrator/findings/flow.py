"""What surely runs of a Python program, in its order, read from its syntax tree. Pure.

Surely: whenever the program comes that far. Bodies of `if`, loops, handlers and of functions that nobody is
seen to call are left out; `if __name__ == "__main__":` and calls of the module's own functions are followed.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

Step: TypeAlias = ast.Call | ast.Assign | ast.Delete

_MOST = 20_000  # steps


@dataclass(frozen=True)
class SourceFile:
    """A file of a program; `path` is relative to where the tasks run."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module | None:
        """None for what this Python cannot read."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the program's own, such as an invalid escape
                return ast.parse(self.text)
        except (MemoryError, RecursionError, SyntaxError, ValueError):
            return None

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree)) if self.tree else ()

    @cached_property
    def calls(self) -> tuple[ast.Call, ...]:
        return tuple(node for node in self.nodes if isinstance(node, ast.Call))

    @cached_property
    def plain_calls(self) -> tuple[ast.Call, ...]:
        """Calls that no condition stands above, in functions that may be called from elsewhere, too."""
        doubtful: set[int] = set()
        for node in self.nodes:
            if isinstance(node, ast.IfExp | ast.ExceptHandler) or (
                isinstance(node, ast.If) and not _is_main(node.test)
            ):
                doubtful.update(id(inner) for inner in ast.walk(node) if isinstance(inner, ast.Call))
        return tuple(call for call in self.calls if id(call) not in doubtful)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Calls, assignments and deletions that surely run, each after what it is made of."""
        return tuple(_Walk(self.tree).module()) if self.tree else ()

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The whole numbers that names stand for: bound once in the file, and to a number."""
        bound: dict[str, list[ast.expr | None]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and _is_name(node.targets[0]):
                bound.setdefault(_name(node.targets[0]), []).append(node.value)
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bound.setdefault(node.id, [])
            elif isinstance(node, ast.arg):
                bound.setdefault(node.arg, []).append(None)
        stores = [node.id for node in self.nodes if isinstance(node, ast.Name) and _is_store(node)]
        found: dict[str, int] = {}
        for name, values in bound.items():
            once = len(values) == 1 and stores.count(name) == 1 and values[0] is not None
            value = _number(values[0], found) if once else None
            if value is not None:
                found[name] = value
        return found

    def number(self, node: ast.expr | None) -> int | None:
        return _number(node, self.numbers)

    def bound(self, name: str) -> ast.expr | None:
        """What a name stands for, where the file binds it once."""
        values = [
            node.value
            for node in self.nodes
            if isinstance(node, ast.Assign) and any(_is_name(t) and _name(t) == name for t in node.targets)
        ]
        stores = sum(
            isinstance(node, ast.Name) and node.id == name and _is_store(node) for node in self.nodes
        )
        return values[0] if len(values) == 1 == stores else None

    @cached_property
    def modules(self) -> dict[str, str]:
        """What imported names stand for: `tf` -> `tensorflow`, `load` -> `tensorflow_datasets.load`."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for one in node.names:
                    name = one.name if one.asname else one.name.partition(".")[0]
                    found[one.asname or name] = name
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for one in node.names:
                    found[one.asname or one.name] = f"{node.module}.{one.name}"
        return found

    def called(self, node: ast.AST) -> str:
        """The full name of what a call calls (`tensorflow.constant`), as far as imports tell; "" else."""
        name = dotted(node.func) if isinstance(node, ast.Call) else ""
        first, dot, rest = name.partition(".")
        return self.modules.get(first, first) + dot + rest if name else ""


def dotted(node: ast.AST) -> str:
    """`tf.data.Dataset` of names and attributes; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def text(node: ast.AST | None) -> str | None:
    """The value of a string that is written out."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in call.keywords if one.arg == name), None)


def argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    """An argument by its place or its name; None where it is not surely there."""
    plain = not any(isinstance(one, ast.Starred) for one in call.args)
    return call.args[place] if plain and len(call.args) > place else keyword(call, name)


@dataclass
class _Walk:
    tree: ast.Module
    functions: dict[str, ast.FunctionDef] = field(init=False)
    entered: set[str] = field(default_factory=set)
    count: int = 0

    def __post_init__(self) -> None:
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    def module(self) -> Iterator[Step]:
        yield from self._body(self.tree.body)

    def _body(self, body: list[ast.stmt]) -> Iterator[Step]:
        for statement in body:
            self.count += 1
            if self.count > _MOST:
                return
            yield from self._statement(statement)
            if isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
                return

    def _statement(self, node: ast.stmt) -> Iterator[Step]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return
            case ast.If(test=test, body=body):
                yield from self._expression(test)
                if _is_main(test):
                    yield from self._body(body)
            case ast.With(items=items, body=body):
                for item in items:
                    yield from self._expression(item.context_expr)
                yield from self._body(body)
            case ast.Try(body=body, orelse=orelse, finalbody=final):
                yield from self._body([*body, *orelse])
                yield from self._body(final)
            case ast.For(iter=over):
                yield from self._expression(over)
            case ast.While(test=test):
                yield from self._expression(test)
            case ast.Assign(value=value):
                yield from self._expression(value)
                yield node
            case ast.Delete():
                yield node
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from self._expression(child)

    def _expression(self, node: ast.AST) -> Iterator[Step]:
        """Its calls, in the order in which they are made."""
        match node:
            case ast.Lambda() | ast.stmt() | ast.Assert():
                return
            case ast.BoolOp(values=values):
                yield from self._expression(values[0])
                return
            case ast.IfExp(test=test):
                yield from self._expression(test)
                return
            case ast.ListComp(generators=parts) | ast.SetComp(generators=parts):
                yield from self._expression(parts[0].iter)
                return
            case ast.DictComp(generators=parts) | ast.GeneratorExp(generators=parts):
                yield from self._expression(parts[0].iter)
                return
        for child in ast.iter_child_nodes(node):
            yield from self._expression(child)
        if isinstance(node, ast.Call):
            yield from self._followed(node)
            yield node

    def _followed(self, call: ast.Call) -> Iterator[Step]:
        """The body of the module's own function that is called; `app.run(main)` calls main."""
        names = [call.func]
        if dotted(call.func).endswith("app.run"):
            names += call.args[:1]
        for name in names:
            function = self.functions.get(name.id) if isinstance(name, ast.Name) else None
            if function is not None and function.name not in self.entered and not _yields(function):
                self.entered.add(function.name)
                yield from self._body(function.body)


def _yields(function: ast.FunctionDef) -> bool:
    inner = (node for node in ast.walk(function) if isinstance(node, ast.Yield | ast.YieldFrom))
    return bool(function.decorator_list) or next(inner, None) is not None


def _is_main(test: ast.expr) -> bool:
    match test:
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[right]):
            return text(right) == "__main__"
    return False


def _is_store(node: ast.AST) -> bool:
    return not isinstance(getattr(node, "ctx", None), ast.Load)


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _number(node: ast.expr | None, names: dict[str, int]) -> int | None:
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return names.get(name)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = _number(left, names), _number(right, names)
            return None if first is None or second is None else first * second
    return None
