"""The names of `typing`, for all that a launch loads: loading that takes 4 ms of an agent's start.

Annotations are never evaluated, and what an alias makes of these names is not used.
"""

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import *
else:

    class Any:
        def __class_getitem__(cls, _: object) -> type:
            return cls

    Callable = Collection = Dict = Iterable = Iterator = Mapping = NoReturn = Sequence = Tuple = Any

    class _Fields(type):
        def __new__(cls, name: str, _: tuple, body: dict) -> type:
            made = namedtuple(name, body["__annotations__"])  # noqa: PYI024
            return type(name, (made,), {**body, "__slots__": ()})

    NamedTuple = type.__new__(_Fields, "NamedTuple", (), {})
