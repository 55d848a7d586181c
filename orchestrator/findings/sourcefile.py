"""A file of a program, and what its syntax tree tells. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from orchestrator.findings import flow
from orchestrator.findings.flow import Step
from orchestrator.findings.syntax import dotted, is_main, is_store, name_of, number_of
from orchestrator.program.texts import parsed

# What calls functions by names that stand nowhere.
_BY_NAME = re.compile(r"\bfire\b|\b(?:globals|locals|vars|getattr|eval|exec)\(")


@dataclass(frozen=True)
class SourceFile:
    """A file of a program; `path` is relative to where the tasks run."""

    path: str
    text: str
    imported: bool = False
    surely: bool = True  # run whenever the program is: no `if` stands above its import

    def at(self, node: ast.stmt | ast.expr) -> tuple[str, int]:
        """Where a finding says that it is."""
        return self.path, node.lineno

    @cached_property
    def tree(self) -> ast.Module | None:
        """None for what this Python cannot read."""
        try:
            return parsed(self.text)
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
        """Calls that no condition stands above, in functions that may be called from elsewhere, too.

        The functions of the program itself are called from nowhere else: one that nothing names is left out.
        """
        if not self.surely:
            return ()
        doubtful: set[int] = set()
        for function in self._uncalled():
            doubtful.update(id(inner) for inner in ast.walk(function) if isinstance(inner, ast.Call))
        for node in self.nodes:
            if isinstance(node, ast.IfExp | ast.ExceptHandler) or (
                isinstance(node, ast.If) and (self.imported or not is_main(node.test))
            ):
                doubtful.update(id(inner) for inner in ast.walk(node) if isinstance(inner, ast.Call))
        return tuple(call for call in self.calls if id(call) not in doubtful)

    def _uncalled(self) -> Iterator[ast.FunctionDef]:
        """The functions of a program that nothing in it names."""
        if self.tree is None or self.imported or _BY_NAME.search(self.text):
            return
        for node in self.tree.body:
            match node:
                case ast.FunctionDef(name=name, decorator_list=[]):
                    if len(re.findall(rf"\b{name}\b", self.text)) == 1:
                        yield node

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
        return tuple(flow.walk(self.tree, imported=self.imported)) if self.tree and self.surely else ()

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The whole numbers that names stand for: bound once in the file, and to a number."""
        bound: dict[str, list[ast.expr | None]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and name_of(node.targets[0]):
                bound.setdefault(name_of(node.targets[0]), []).append(node.value)
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bound.setdefault(node.id, [])
            elif isinstance(node, ast.arg):
                bound.setdefault(node.arg, []).append(None)
            elif isinstance(node, ast.alias):
                bound.setdefault(node.asname or node.name, []).append(None)
        stores = [node.id for node in self.nodes if isinstance(node, ast.Name) and is_store(node)]
        found: dict[str, int] = {}
        for name, values in bound.items():
            once = len(values) == 1 and stores.count(name) == 1 and values[0] is not None
            value = number_of(values[0], found) if once else None
            if value is not None:
                found[name] = value
        return found

    def number(self, node: ast.expr | None) -> int | None:
        return number_of(node, self.numbers)

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
                    found += [
                        value for one in targets if any(name_of(part) == name for part in ast.walk(one))
                    ]
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
            if isinstance(node, ast.Assign) and any(name_of(one) == name for one in node.targets)
        ]
        stores = sum(
            (isinstance(node, ast.Name) and node.id == name and is_store(node))
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
