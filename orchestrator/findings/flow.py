"""What surely runs of a Python program, in its order, read from its syntax tree. Pure.

Surely: whenever the program comes that far. Bodies of `if`, loops, handlers and of functions that nobody is
seen to call are left out; `if __name__ == "__main__":` and calls of the module's own functions are followed.
"""

from __future__ import annotations

import ast
import re
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
    imported: bool = False
    surely: bool = True  # run whenever the program is: no `if` stands above its import

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

    def names(self, word: str) -> bool:
        """Whether its code has a name, which a comment or a text of several words is not."""
        return any(
            (isinstance(node, ast.Name) and node.id == word)
            or (isinstance(node, ast.Attribute) and node.attr == word)
            or (isinstance(node, ast.alias) and node.name == word)
            or (isinstance(node, ast.Constant) and node.value == word)
            for node in self.nodes
        )

    @cached_property
    def calls(self) -> tuple[ast.Call, ...]:
        return tuple(node for node in self.nodes if isinstance(node, ast.Call))

    @cached_property
    def plain_calls(self) -> tuple[ast.Call, ...]:
        """Calls that no condition stands above, in functions that may be called from elsewhere, too."""
        if not self.surely:
            return ()
        doubtful: set[int] = set()
        for node in self.nodes:
            if isinstance(node, ast.IfExp | ast.ExceptHandler) or (
                isinstance(node, ast.If) and (self.imported or not _is_main(node.test))
            ):
                doubtful.update(id(inner) for inner in ast.walk(node) if isinstance(inner, ast.Call))
        return tuple(call for call in self.calls if id(call) not in doubtful)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Calls, assignments and deletions that surely run, each after what it is made of."""
        return tuple(step for step in self._walked if step is not None)

    @cached_property
    def certain(self) -> tuple[Step, ...]:
        """Those of `steps` that every task takes: before some may have ended."""
        first = self._walked.index(None) if None in self._walked else None
        return tuple(step for step in self._walked[:first] if step is not None)

    @cached_property
    def _walked(self) -> tuple[Step | None, ...]:
        return tuple(_Walk(self.tree, self.imported).module()) if self.tree and self.surely else ()

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
            elif isinstance(node, ast.alias):
                bound.setdefault(node.asname or node.name, []).append(None)
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

    def statement(self, line: int) -> tuple[str, ...]:
        """The lines of the plain statement that `line` is in; of one with a body only that line."""
        spans = (
            (node.lineno, node.end_lineno or node.lineno)
            for node in self.nodes
            if isinstance(node, ast.stmt) and not hasattr(node, "body")
        )
        first, last = next((span for span in spans if span[0] <= line <= span[1]), (line, line))
        return tuple(self.text.split("\n")[first - 1 : last])

    def values(self, name: str) -> tuple[ast.expr, ...]:
        """What is assigned to a name anywhere in the file, and returned where it is a function's."""
        found: list[ast.expr] = []
        for node in self.nodes:
            match node:
                case ast.Assign(targets=targets, value=value):
                    found += [value for one in targets if any(_name(part) == name for part in ast.walk(one))]
                case ast.NamedExpr(target=ast.Name(id=bound), value=value) if bound == name:
                    found.append(value)
                case ast.AnnAssign(target=ast.Name(id=bound), value=ast.expr() as value) if bound == name:
                    found.append(value)
                case ast.FunctionDef(name=bound) if bound == name:
                    found += [
                        one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value
                    ]
        return tuple(found)

    def given(self, parameter: str) -> tuple[ast.expr, ...]:
        """What the file's own calls give to its functions that have a parameter of that name."""
        takers = {
            node.name
            for node in self.nodes
            if isinstance(node, ast.FunctionDef)
            and any(isinstance(one, ast.arg) and one.arg == parameter for one in ast.walk(node.args))
        }
        calls = [call for call in self.calls if takers and dotted(call.func) in takers]
        return tuple(one for call in calls for one in (*call.args, *(word.value for word in call.keywords)))

    def bound(self, name: str) -> ast.expr | None:
        """What a name stands for, where the file binds it once, and not as a parameter."""
        values = [
            node.value
            for node in self.nodes
            if isinstance(node, ast.Assign) and any(_is_name(t) and _name(t) == name for t in node.targets)
        ]
        stores = sum(
            (isinstance(node, ast.Name) and node.id == name and _is_store(node))
            or (isinstance(node, ast.arg) and node.arg == name)
            for node in self.nodes
        )
        return values[0] if len(values) == 1 == stores else None

    @cached_property
    def last_import(self) -> int:
        """The line of the last import, 0 where there is none."""
        return max(
            (node.lineno for node in self.nodes if isinstance(node, ast.Import | ast.ImportFrom)), default=0
        )

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
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else ""


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
    imported: bool = False
    functions: dict[str, ast.FunctionDef] = field(init=False)
    entered: set[str] = field(default_factory=set)
    shadowed: frozenset[str] = frozenset()  # parameters of the function whose body this is
    count: int = 0

    def __post_init__(self) -> None:
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    def module(self) -> Iterator[Step | None]:
        yield from self._body(self.tree.body, tail=True)

    def _body(self, body: list[ast.stmt], *, tail: bool) -> Iterator[Step | None]:
        """None stands where some tasks may end; with `tail`, the program ends where the body does."""
        for statement in body:
            self.count += 1
            if self.count > _MOST:
                return
            try:
                # A list: an expression of a thousand operators is left out as a whole.
                yield from [*self._statement(statement, tail=tail and statement is body[-1])]
            except RecursionError:
                continue
            if isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
                return
            if not tail and _returns(statement):
                return
            if _ends_some(statement):
                yield None

    def _statement(self, node: ast.stmt, *, tail: bool) -> Iterator[Step | None]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return
            case ast.If(test=test, body=body):
                yield from self._expression(test)
                if _is_main(test) and not self.imported:
                    yield from self._body(body, tail=tail)
            case ast.With(items=items, body=body):
                for item in items:
                    yield from self._expression(item.context_expr)
                yield from self._body(body, tail=tail)
            case ast.Try(body=body, orelse=orelse, finalbody=final):
                yield from self._body([*body, *orelse], tail=tail)
                yield from self._body(final, tail=tail)
            case ast.For(iter=over):
                yield from self._expression(over)
            case ast.While(test=test):
                yield from self._expression(test)
            case ast.Match(subject=subject):
                yield from self._expression(subject)
            case ast.Assign(value=value):
                yield from self._expression(value)
                yield node
            case ast.Delete():
                yield node
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from self._expression(child, tail=tail)

    def _expression(self, node: ast.AST, *, tail: bool = False) -> Iterator[Step | None]:
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
            yield from self._expression(child, tail=tail)
        if isinstance(node, ast.Call):
            yield from self._followed(node, tail=tail)
            yield node

    def _followed(self, call: ast.Call, *, tail: bool) -> Iterator[Step | None]:
        """The body of the module's own function that is called; `app.run(main)` calls main."""
        names = [call.func]
        if dotted(call.func).endswith(_CALLERS):
            names += call.args[:1] or [ast.Name("main", ast.Load())]
        for name in names:
            known = isinstance(name, ast.Name) and name.id not in self.shadowed
            function = self.functions.get(_name(name)) if known else None
            if function is not None and function.name not in self.entered and not _yields(function):
                self.entered.add(function.name)
                before = self.shadowed
                self.shadowed = frozenset(
                    one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)
                )
                yield from self._body(function.body, tail=tail)
                self.shadowed = before


_CALLERS = ("app.run", "fire.Fire", "typer.run")
_OPTIONS = ("hydra.main", "click.command", "click.option", "click.argument")  # they call what they decorate
# A condition on which tasks part, as in `if task_id != 0: return`.
_PARTS = re.compile(r"TF_CONFIG|task|chief|worker|rank|index|primary|master|lead|is_", re.IGNORECASE)
_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a statement, without the functions and classes that it defines."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(one))


def _returns(node: ast.stmt) -> bool:
    return isinstance(node, _COMPOUND) and any(isinstance(one, ast.Return) for one in _inside(node))


def _ends_some(node: ast.stmt) -> bool:
    """`if not is_chief: sys.exit()`, and the same with return."""
    if not isinstance(node, _COMPOUND):
        return False
    ended = any(
        isinstance(one, ast.Return)
        or (isinstance(one, ast.Call) and dotted(one.func) in ("sys.exit", "exit", "quit", "os._exit"))
        or (isinstance(one, ast.Raise) and "SystemExit" in ast.dump(one))
        for one in _inside(node)
    )
    tests: list[ast.AST] = [one.test for one in _inside(node) if isinstance(one, ast.If)]
    return ended and any(_PARTS.search(word) for one in tests or [node] for word in _words(one))


def _words(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        match one:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.Constant(value=str(word)):
                yield word


def _yields(function: ast.FunctionDef) -> bool:
    inner = (node for node in ast.walk(function) if isinstance(node, ast.Yield | ast.YieldFrom))
    names = (dotted(one.func if isinstance(one, ast.Call) else one) for one in function.decorator_list)
    return any(name not in _OPTIONS for name in names) or next(inner, None) is not None


def _is_main(test: ast.expr) -> bool:
    match test:
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[right]):
            return text(right) == "__main__"
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Name(id="__name__")]):
            return text(left) == "__main__"
    return False


def _is_store(node: ast.AST) -> bool:
    return not isinstance(getattr(node, "ctx", None), ast.Load)


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _number(node: ast.expr | None, names: dict[str, int], depth: int = 20) -> int | None:
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return names.get(name)
        case ast.BinOp(left=left, op=ast.Mult(), right=right) if depth:
            first, second = _number(left, names, depth - 1), _number(right, names, depth - 1)
            return None if first is None or second is None else first * second
    return None
