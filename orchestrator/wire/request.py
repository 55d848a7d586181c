"""A question to a node and how its answer is read. Pure."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, get_args

import msgspec
from msgspec import Struct

from orchestrator.text import advised
from orchestrator.wire.fields import Lines, Reply, Words, printable

HEAD = 1 << 20  # bytes of a header, unless an operation allows for more
LARGE = 16 << 20  # what `node.frames` sends at most

_ready: set[Any] = set()  # types that msgspec knows
_preparing = threading.Lock()

R = TypeVar("R", bound=Reply)
T = TypeVar("T")


class ProtocolError(ValueError):
    """A message that our agent does not send; worded for a person, short and printable."""

    def __init__(self, why: object) -> None:
        super().__init__(printable(str(why), 300))


class Request(Struct, Generic[R], frozen=True, kw_only=True):
    """One operation: its fields are what is sent, its class says what may come back."""

    OP: ClassVar[str]
    REPLY: ClassVar[type[Any]]  # R, taken from `Request[R]`
    HEAD: ClassVar[int] = HEAD  # bytes of the reply's header,
    PAYLOAD: ClassVar[int] = 0  # and of its payload

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        (cls.REPLY,) = get_args(vars(cls)["__orig_bases__"][0])

    def check(self, reply: R, /) -> None:
        """Raise ValueError for a reply that answers another question; override where one can tell."""


class Failure(Reply, frozen=True):
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


class Nothing(Reply, frozen=True):
    """An answer without content."""


def header(number: int, request: Request[Any]) -> dict[str, Any]:
    """Return what is sent for a request."""
    return {"id": number, "op": request.OP, **msgspec.to_builtins(request)}


def parse(data: bytes) -> dict[str, Any]:
    """The header of a frame; raise ProtocolError."""
    try:
        found = json.loads(data, parse_constant=_no_number)
    except RecursionError:
        raise ProtocolError("its JSON is nested too deep") from None
    except ValueError as error:
        raise ProtocolError(f"it sent what is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ProtocolError(f"a frame's header must be an object, not {type(found).__name__}")
    return found


def read(what: object, kind: type[T], name: str) -> T:
    """JSON as a type of ours; raise ProtocolError, which calls it `name`."""
    if kind not in _ready:
        _prepare(kind)
    try:
        return msgspec.convert(what, kind)
    except (
        ValueError,
        RecursionError,
        OverflowError,
    ) as error:  # half a surrogate, too
        raise ProtocolError(f"{name}: {error}") from None


def _prepare(kind: Any) -> None:
    """Let msgspec (0.22) learn a type in one thread: two that meet it first at once end in SIGSEGV.

    Agents answer at the same moment, each to a thread of its own.
    """
    with _preparing:
        with contextlib.suppress(msgspec.ValidationError):
            msgspec.convert(None, kind)
        _ready.add(kind)  # not before: others go on with what is in it


def answer(request: Request[R], result: object, payload: bytes) -> R:
    """The reply to a request; raise ProtocolError."""
    kind: type[R] = request.REPLY
    if request.PAYLOAD and isinstance(result, dict):
        result = {**result, "payload": payload}
    reply = read(result, kind, f"the answer to `{request.OP}`")
    try:
        request.check(reply)
    except ValueError as error:
        raise ProtocolError(f"the answer to `{request.OP}`: {error}") from None
    return reply


def expect(right: object, why: str) -> None:
    """Raise ValueError with what is wrong, unless it is right."""
    if not right:
        raise ValueError(why)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")
