"""Named tuples without `typing`, whose import is a sixth of an agent's start."""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:

    class _Maker(type):
        def __new__(cls, name: str, bases: tuple, body: dict) -> type:
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = namedtuple(name, body["__annotations__"])  # noqa: PYI024 - what this file is for
            return type(name, (fields,), {**body, "__slots__": ()})

    class NamedTuple(metaclass=_Maker):
        """A base class: annotated names become the fields."""


__all__ = ["NamedTuple"]
