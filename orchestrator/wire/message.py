"""Requests and replies: how a question is sent and its answer read, and the fields of both. Pure.

A reply comes from a stranger. What does not fit its type is refused as a whole; only text that a person
reads is mended instead: made printable and cut to its length.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    TypeAlias,
    TypeVar,
    dataclass_transform,
    get_args,
    get_type_hints,
)

import msgspec
from msgspec import Meta, Struct

from orchestrator.node.serve.frames import MARKER, READY, Decoder
from orchestrator.text import advised, cut, plain

_FAR = 2**62  # a moment in ns, an offset or a size: more than any machine has

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Size: TypeAlias = Annotated[int, Meta(ge=0, le=_FAR)]
Moment: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # ns since the epoch
Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]
Pid: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Code: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**32)]
Signal: TypeAlias = Annotated[int, Meta(ge=0, le=255)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
Percent: TypeAlias = Annotated[int, Meta(ge=0, le=100)]

Name: TypeAlias = Annotated[str, Meta(max_length=200, pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
Digest: TypeAlias = Annotated[str, Meta(max_length=128, pattern=r"\A[0-9a-f]+\Z")]
Folder: TypeAlias = Annotated[str, Meta(max_length=4096, pattern=r"\A/[^\x00]*\Z")]  # for that node alone


class _Shown(StrEnum):
    LINE = "line"
    LINES = "lines"


Words: TypeAlias = Annotated[str, Meta(extra={_Shown.LINE: 1000})]  # of any kind, for a person to read
Lines: TypeAlias = Annotated[str, Meta(extra={_Shown.LINES: 20_000})]
Dump: TypeAlias = Annotated[str, Meta(extra={_Shown.LINES: 2**20})]


@dataclass_transform(frozen_default=True)
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


HEAD = 1 << 20  # bytes of a header, unless an operation allows for more
LARGE = 16 << 20  # what `node.frames` sends at most

# msgspec (0.22) ends in SIGSEGV where two threads that agents answer to meet a type first at once.
_reading = threading.Lock()

_R = TypeVar("_R", bound=Reply)
_T = TypeVar("_T")


class ProtocolError(ValueError):
    """A message that our agent does not send; worded for a person, short and printable."""

    def __init__(self, why: object) -> None:
        super().__init__(printable(str(why), 300))


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Request(Struct, Generic[_R], frozen=True):
    """One operation: its fields are what is sent, its class says what may come back."""

    OP: ClassVar[str]  # `store_begin` for `StoreBegin`
    REPLY: ClassVar[type[Any]]  # _R, taken from `Request[_R]`
    HEAD: ClassVar[int] = HEAD  # bytes of the reply's header,
    PAYLOAD: ClassVar[int] = 0  # and of its payload

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        (cls.REPLY,) = get_args(vars(cls)["__orig_bases__"][0])
        cls.OP = re.sub(r"\B[A-Z]", r"_\g<0>", cls.__name__).lower()

    def check(self, reply: _R, /) -> None:
        """Raise ValueError for a reply that answers another question; override where one can tell."""


class Failure(Reply):
    """The reason why a node could not do what it was asked."""

    what: Words
    kind: Words = "agent"
    why: Lines = ""
    hint: Lines = ""

    @property
    def said(self) -> str:
        """Word an error as the host's: only our own words stand without their speaker."""
        return f"says: {self.what}"

    @property
    def told(self) -> str:
        """Why, and what the host advises; that is no hint of ours: it could be `curl evil | sh`."""
        return "\n".join(filter(None, (self.why.strip("\n"), advised("the host", self.hint))))


class Nothing(Reply):
    """An answer without content."""


def header(number: int, request: Request[Any]) -> bytes:
    """Return what is sent for a request, as JSON."""
    fields = {"id": number, "op": request.OP, **msgspec.to_builtins(request)}
    try:
        return msgspec.json.encode(fields)
    except UnicodeEncodeError:  # an argument or a path that is no UTF-8
        return json.dumps(fields).encode()


def read(what: object, kind: type[_T], name: str) -> _T:
    """JSON as a type of ours; raise ProtocolError, which calls it `name`."""
    try:
        with _reading:
            return msgspec.convert(what, kind)
    except (ValueError, RecursionError, OverflowError) as error:  # half a surrogate, too
        raise ProtocolError(f"{name}: {error}") from None


def answer(request: Request[_R], result: object, payload: bytes) -> _R:
    """The reply to a request; raise ProtocolError."""
    kind: type[_R] = request.REPLY
    if request.PAYLOAD and isinstance(result, dict):
        result = {**result, "payload": payload}
    reply = read(result, kind, f"the answer to `{request.OP}`")
    try:
        request.check(reply)
    except ValueError as error:
        raise ProtocolError(f"the answer to `{request.OP}`: {error}") from None
    return reply


# --- the bytes of an agent ---

NOISE = 65_536  # bytes of login noise that are kept

Header: TypeAlias = dict[str, Any]
Limits: TypeAlias = Callable[[], tuple[int, int]]  # of the header and payload of any frame that may come now
Limit: TypeAlias = Callable[[Header], int]  # of the payload behind this header


class AgentStream(Decoder):
    """The bytes of one agent: login noise, the marker, frames.

    `limits` bounds a frame that has announced its sizes, `limit` one whose header is known; so no more
    is kept than somebody waits for.
    """

    def __init__(self, limits: Limits, limit: Limit) -> None:
        super().__init__()
        self.noise = b""
        self.ready = False  # what is written now is read by our command
        self.marked = False
        self._limits = limits
        self._limit = limit

    @property
    def wanting(self) -> int:
        """How large the frame is that has begun and not ended; 0 between two frames."""
        return self._need if self._buffer else 0

    def feed(self, data: bytes) -> Iterator[tuple[Header, bytes]]:
        """The frames that `data` completes; raise ProtocolError for what is not a frame."""
        if not self.marked:
            noise, marker, data = (self.noise + data).partition(MARKER)
            self.ready = self.ready or READY in noise
            self.noise = noise.replace(READY, b"")[-NOISE:]
            if not marker:
                return
            self.marked = True
        yield from super().feed(data)

    def check(self, head: int, body: int) -> None:
        most_head, most_body = self._limits()
        if not 0 < head <= most_head:
            raise ProtocolError(f"it announced a header of {head:,} bytes; at most {most_head:,} may come")
        if body > most_body:
            raise ProtocolError(f"it announced a payload of {body:,} bytes; at most {most_body:,} may come")

    def parse(self, data: bytes, body: int) -> Header:
        try:
            header = super().parse(data, body)
        except ValueError as error:
            raise ProtocolError(error) from None
        if body > (most := self._limit(header)):
            raise ProtocolError(f"it sent a payload of {body:,} bytes; at most {most:,} may come")
        return header
