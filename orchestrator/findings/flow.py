"""What surely runs of a Python program, in its order, read from its syntax tree. Pure.

Surely: whenever the program comes that far. Bodies of `if`, loops, handlers and of functions that nobody is
seen to call are left out; `if __name__ == "__main__":` and calls of the module's own functions are followed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from orchestrator.findings.syntax import dotted, is_main, name_of

Step: TypeAlias = ast.Call | ast.Assign | ast.AugAssign | ast.Delete

_MOST = 20_000  # steps


def walk(tree: ast.Module, *, imported: bool) -> Iterator[Step | None]:
    """Calls, assignments and deletions, each after what it is made of; None where some tasks may end."""
    return _Walk(tree, imported).body(tree.body, tail=True)


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

    def body(self, body: list[ast.stmt], *, tail: bool) -> Iterator[Step | None]:
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
                if is_main(test) and not self.imported:
                    yield from self.body(body, tail=tail)
            case ast.With(items=items, body=body):
                for item in items:
                    yield from self._expression(item.context_expr)
                yield from self.body(body, tail=tail)
            case ast.Try(body=body, orelse=orelse, finalbody=final):
                yield from self.body([*body, *orelse], tail=tail)
                yield from self.body(final, tail=tail)
            case ast.For(iter=over):
                yield from self._expression(over)
            case ast.While(test=test):
                yield from self._expression(test)
            case ast.Match(subject=subject):
                yield from self._expression(subject)
            case ast.Assign(value=value) | ast.AugAssign(value=value):
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
            function = self.functions.get(name_of(name)) if known else None
            if function is not None and function.name not in self.entered and not _yields(function):
                self.entered.add(function.name)
                before = self.shadowed
                self.shadowed = frozenset(
                    one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)
                )
                yield from self.body(function.body, tail=tail)
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
