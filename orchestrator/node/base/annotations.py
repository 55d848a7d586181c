"""The names that annotations need. None is evaluated, and `typing` would be a sixth of an agent's start."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any, NoReturn, TypeAlias
else:
    Any = Callable = Collection = Iterable = Iterator = Mapping = NoReturn = Sequence = TypeAlias = None
