"""Fields of replies: types with bounds, and text that is safe to show. Pure.

A reply comes from a stranger. What does not fit its type is refused as a whole; only text that a person
reads is mended instead: made printable and cut to its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, TypeAlias, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from orchestrator.text import cut, plain

_FAR = 2**62  # a moment in ns, an offset or a size: more than any machine has

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Size: TypeAlias = Annotated[int, Meta(ge=0, le=_FAR)]
Offset: TypeAlias = Annotated[int, Meta(ge=0, le=_FAR)]
Moment: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # ns since the epoch
Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]
Pid: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Code: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**32)]
Signal: TypeAlias = Annotated[int, Meta(ge=0, le=255)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
Percent: TypeAlias = Annotated[int, Meta(ge=0, le=100)]

Name: TypeAlias = Annotated[str, Meta(max_length=200, pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
Attempt: TypeAlias = Annotated[
    str, Meta(max_length=200, pattern=r"\A(?:[0-9]{1,9}|[A-Za-z][A-Za-z0-9._-]*)\Z")
]
TaskName: TypeAlias = Annotated[
    str, Meta(max_length=20, pattern=r"\A(?:chief|worker|ps|evaluator)/(?:0|[1-9][0-9]{0,6})\Z")
]
Digest: TypeAlias = Annotated[str, Meta(max_length=128, pattern=r"\A[0-9a-f]+\Z")]
Folder: TypeAlias = Annotated[str, Meta(max_length=4096, pattern=r"\A/[^\x00]*\Z")]  # for that node alone


class _Shown(StrEnum):
    LINE = "line"
    LINES = "lines"


Words: TypeAlias = Annotated[str, Meta(extra={_Shown.LINE: 1000})]  # of any kind, for a person to read
Lines: TypeAlias = Annotated[str, Meta(extra={_Shown.LINES: 20_000})]
Dump: TypeAlias = Annotated[str, Meta(extra={_Shown.LINES: 2**20})]


class Reply(Struct, frozen=True):
    """A node's answer; its text is printable and bounded from the moment that it is decoded."""

    def __post_init__(self) -> None:
        for name, lines, limit in _shown(type(self)):
            value = getattr(self, name)
            msgspec.structs.force_setattr(self, name, _mended(value, limit, lines=lines))


def printable(text: str, limit: int = 1000, *, lines: bool = False) -> str:
    """The text as it may be shown: cut, and without controls; `lines` keeps its line ends."""
    text = cut(text, limit)
    return "\n".join(map(plain, text.split("\n"))) if lines else plain(text)


def _mended(value: Any, limit: int, *, lines: bool) -> Any:
    match value:
        case str():
            return printable(value, limit, lines=lines)
        case tuple():
            return tuple(_mended(one, limit, lines=lines) for one in value)
        case dict():
            return {
                _mended(key, limit, lines=lines): _mended(one, limit, lines=lines)
                for key, one in value.items()
            }
    return value


@cache
def _shown(reply: type[Reply]) -> tuple[tuple[str, bool, int], ...]:
    """The fields with text for a person: name, whether it has several lines, how long it may be."""
    return tuple(
        (name, shown is _Shown.LINES, limit)
        for name, hint in get_type_hints(reply, include_extras=True).items()
        for shown, limit in _marks(hint)
    )


def _marks(hint: Any) -> Iterator[tuple[Any, int]]:
    for one in get_args(hint):
        if isinstance(one, Meta):
            yield from (one.extra or {}).items()
        else:
            yield from _marks(one)
