"""Small questions to the nodes of a Python syntax tree. Pure."""

from __future__ import annotations

import ast


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


def is_main(test: ast.expr) -> bool:
    match test:
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[right]):
            return text(right) == "__main__"
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Name(id="__name__")]):
            return text(left) == "__main__"
    return False


def is_store(node: ast.AST) -> bool:
    return not isinstance(getattr(node, "ctx", None), ast.Load)


def name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def number_of(node: ast.expr | None, names: dict[str, int], depth: int = 20) -> int | None:
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return names.get(name)
        case ast.BinOp(left=left, op=ast.Mult(), right=right) if depth:
            first, second = number_of(left, names, depth - 1), number_of(right, names, depth - 1)
            return None if first is None or second is None else first * second
    return None
