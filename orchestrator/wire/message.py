"""Requests and replies: how a request is sent and its reply read, and the fields of both. Pure.

A reply is untrusted. One that does not fit its type is rejected as a whole; only text for users is repaired
instead: made printable and cut to length.
"""

import json
import re
from collections.abc import Callable, Iterator
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
from msgspec import Meta

from orchestrator.node.serve.frames import MARKER, READY, Decoder
from orchestrator.text import READING, advised, cut, plain
from orchestrator.value import Value

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


# Text for users, with the arguments of `printable`.
Words: TypeAlias = Annotated[str, Meta(extra={"limit": 1000})]
Lines: TypeAlias = Annotated[str, Meta(extra={"limit": 20_000, "lines": True})]
Dump: TypeAlias = Annotated[str, Meta(extra={"limit": 2**20, "lines": True})]


class Reply(Value):
    """A node's reply; its text is printable and bounded as soon as it is decoded."""

    def __post_init__(self) -> None:
        for name, bounds in _shown(type(self)):
            value = getattr(self, name)
            msgspec.structs.force_setattr(self, name, _printable(value, bounds))


def printable(text: str, limit: int = 1000, *, lines: bool = False) -> str:
    """Return the text in displayable form: cut, and without controls; `lines` keeps its line ends."""
    text = cut(text, limit)
    return "\n".join(map(plain, text.split("\n"))) if lines else plain(text)


def _printable(value: Any, bounds: dict[str, Any]) -> Any:
    match value:
        case str():
            return printable(value, **bounds)
        case tuple():
            return tuple(_printable(item, bounds) for item in value)
        case dict():
            return {_printable(key, bounds): _printable(item, bounds) for key, item in value.items()}
    return value


@cache
def _shown(reply: type[Reply]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return the fields with text for users, and its bounds."""
    hints = get_type_hints(reply, include_extras=True)
    return tuple((name, bounds) for name, hint in hints.items() for bounds in _marks(hint))


def _marks(hint: Any) -> Iterator[dict[str, Any]]:
    for mark in get_args(hint):
        if isinstance(mark, Meta):
            yield from [mark.extra] if mark.extra else []
        else:
            yield from _marks(mark)


HEAD = 1 << 20  # bytes of a header, unless an operation allows more
LARGE = 16 << 20  # the most that `node.frames` sends

_R = TypeVar("_R", bound=Reply)
_T = TypeVar("_T")


class ProtocolError(ValueError):
    """A message that our agent does not send; its text is for users, short and printable."""

    def __init__(self, why: object) -> None:
        super().__init__(printable(str(why), 300))


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Request(Value, Generic[_R]):
    """One operation: its fields are what is sent, its class determines the reply."""

    OP: ClassVar[str]  # `store_begin` for `StoreBegin`
    REPLY: ClassVar[type[Any]]  # _R, taken from `Request[_R]`
    HEAD: ClassVar[int] = HEAD  # bytes of the reply's header,
    PAYLOAD: ClassVar[int] = 0  # and of its payload

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        (cls.REPLY,) = get_args(vars(cls)["__orig_bases__"][0])
        cls.OP = re.sub(r"\B[A-Z]", r"_\g<0>", cls.__name__).lower()

    def check(self, reply: _R, /) -> None:
        """Raise ValueError for a reply to a different request; override where that is detectable."""


class Failure(Reply):
    """Why a node could not do what was requested."""

    what: Words
    kind: Words = "agent"
    why: Lines = ""
    hint: Lines = ""

    @property
    def summary(self) -> str:
        """Describe an error as the host's; only our own text needs no source."""
        return f"reports: {self.what}"

    @property
    def details(self) -> str:
        """Return the reason and the host's suggestion, which is not our hint (it could be malicious)."""
        return "\n".join(filter(None, (self.why.strip("\n"), advised("the host", self.hint))))


class Nothing(Reply):
    """A reply without content."""


def header(number: int, request: Request[Any]) -> bytes:
    """Return what is sent for a request, as JSON."""
    fields = {"id": number, "op": request.OP, **msgspec.to_builtins(request)}
    try:
        return msgspec.json.encode(fields)
    except UnicodeEncodeError:  # an argument or a path that is not UTF-8
        return json.dumps(fields).encode()


def read(what: object, kind: type[_T], name: str) -> _T:
    """Parse JSON as one of our types; raise ProtocolError, which refers to it as `name`."""
    try:
        with READING:
            return msgspec.convert(what, kind)
    except (ValueError, RecursionError, OverflowError) as error:  # also lone surrogates
        raise ProtocolError(f"{name}: {error}") from None


def answer(request: Request[_R], result: object, payload: bytes) -> _R:
    """Return the reply to a request; raise ProtocolError."""
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

NOISE = 65_536  # bytes of login output that are kept

Header: TypeAlias = dict[str, Any]
Limits: TypeAlias = Callable[[], tuple[int, int]]  # of the header and payload of any frame allowed now
Limit: TypeAlias = Callable[[Header], int]  # of the payload behind this header


class AgentStream(Decoder):
    """The bytes of one agent: login output, the marker, frames.

    `limits` bounds a frame that has announced its sizes, `limit` one whose header is known, so that no more
    is kept than somebody waits for.
    """

    def __init__(self, limits: Limits, limit: Limit) -> None:
        super().__init__()
        self.noise = b""
        self.ready = False  # our command now reads what is written
        self.marked = False
        self._limits = limits
        self._limit = limit

    def feed(self, data: bytes) -> Iterator[tuple[Header, bytes]]:
        """Return the frames that `data` completes; raise ProtocolError for what is not a frame."""
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
