"""Reads a tar stream that a stranger may have made: three kinds of members, every length bounded.

The library's reader takes much more (sparse files, headers behind headers, sums that are wrong); here
what is not plainly a file, a folder or a symbolic link ends the stream with an error.
"""

from __future__ import annotations

from ..base.annotations import Any, Iterator
from ..base.fault import NodeError
from ..base.tuples import NamedTuple
from .below import shortened

FILE, FOLDER, LINK = "file", "folder", "link"
CHUNK = 1 << 20
NS = "orchestrate.mtime_ns"  # tar's own times are floats, too coarse to tell two checkpoints apart
BLOCK = 512
_MOST_EXTRA = 64 << 10  # bytes of names and such before one member
_KINDS = {b"0": FILE, b"\0": FILE, b"5": FOLDER, b"2": LINK}
_PAX, _LONG = b"x", {b"L": "path", b"K": "linkpath"}
_MOST = 1 << 62


class Member(NamedTuple):
    name: str
    kind: str
    size: int
    mode: int
    mtime_ns: int
    target: str  # of a link


class UnaskedError(NodeError):
    """A member that is not taken."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__("tar", f"refuses {shortened(name)}", why, "try again")
        self.name = name


class Reader:
    """The members of a stream, one after the other, and the content of the present one."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left = self._padding = 0

    def members(self) -> Iterator[Member]:
        """Until the end mark; raise NodeError (kind "tar") for a stream that is damaged, or odd."""
        extra: dict[str, str] = {}
        while True:
            self._skip()
            block = self._exactly(BLOCK)
            if not any(block):
                if extra:
                    raise _damaged("a name without a member")
                return
            kind, size = _checked(block), _number(block[124:136])
            if kind == _PAX or kind in _LONG:
                self._extend(extra, kind, size)
                continue
            yield self._member(block, kind, size, extra)
            extra = {}

    def read(self) -> bytes:
        """The next piece of the present file; empty at its end."""
        data = self._exactly(min(self._left, CHUNK))
        self._left -= len(data)
        return data

    def drain(self) -> None:
        """Whatever stands behind the end mark."""
        while self._stream.read(CHUNK):
            pass

    def _member(self, block: bytes, kind: bytes, size: int, extra: dict[str, str]) -> Member:
        name = extra.get("path") or _name_in(block)
        if kind not in _KINDS or any(key.startswith("GNU.sparse") for key in extra):
            raise UnaskedError(name, "only files, folders and symbolic links are taken")
        what = _KINDS[kind]
        if "size" in extra:
            size = _decimal(extra["size"])
        if what != FILE and size:
            raise _damaged(f"{shortened(name)} is not a file and has content")
        self._left, self._padding = size, -size % BLOCK
        mtime_ns = _decimal(extra[NS]) if NS in extra else _number(block[136:148]) * 10**9
        if mtime_ns >= 1 << 63:
            raise _damaged("a time that no file has")
        target = extra.get("linkpath") or _text(block[157:257]) if what == LINK else ""
        name = name[:-1] if what == FOLDER and name.endswith("/") else name
        return Member(name, what, size, _number(block[100:108]) & 0o777, mtime_ns, target)

    def _extend(self, extra: dict[str, str], kind: bytes, size: int) -> None:
        """Take what a header before a member says about it, each thing once."""
        if size > _MOST_EXTRA:
            raise _damaged(f"a header of {size} bytes")
        data = self._exactly(size)
        self._exactly(-size % BLOCK)
        found = _records(data) if kind == _PAX else {_LONG[kind]: _text(data)}
        if not found or set(found) & set(extra):
            raise _damaged("a header that says nothing new")
        extra.update(found)

    def _skip(self) -> None:
        while self._left:
            self.read()
        self._exactly(self._padding)
        self._padding = 0

    def _exactly(self, size: int) -> bytes:
        data: bytes = self._stream.read(size) if size else b""
        while len(data) < size:
            more = self._stream.read(size - len(data))
            if not more:
                raise _damaged("unexpected end of data")
            data += more
        return data


def _checked(block: bytes) -> bytes:
    """The kind of a header whose sum is right."""
    said = _number(block[148:156])
    if sum(block[:148]) + sum(block[156:]) + 8 * 32 != said:
        raise _damaged("a header's sum is wrong")
    return block[156:157]


def _number(field: bytes) -> int:
    """Octal digits, or after a byte 0x80 a binary number."""
    if field[0] == 0x80:
        number = int.from_bytes(field[1:], "big")
    else:
        digits = field.split(b"\0")[0].strip()
        if digits.strip(b"01234567"):
            raise _damaged("a header's number is none")
        number = int(digits or b"0", 8)
    if number > _MOST:
        raise _damaged("a header's number is too large")
    return number


def _decimal(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise _damaged("a header's number is none")
    return int(text)


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode("utf-8", "surrogateescape")


def _name_in(block: bytes) -> str:
    prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else ""
    return f"{prefix}/{_text(block[:100])}" if prefix else _text(block[:100])


def _records(data: bytes) -> dict[str, str]:
    """Lines of `<length> <key>=<value>`."""
    found: dict[str, str] = {}
    while data.rstrip(b"\0"):
        key, value, data = _record(data)
        if key in found:
            raise _damaged("a header says a thing twice")
        found[key] = value
    return found


def _record(data: bytes) -> tuple[str, str, bytes]:
    length, blank, _ = data[:8].partition(b" ")
    if not blank or not length.isdigit() or not len(length) + 2 < int(length) <= len(data):
        raise _damaged("a header is cut")
    line, rest = data[len(length) + 1 : int(length)], data[int(length) :]
    key, sign, value = line[:-1].partition(b"=")
    if not key or not sign or not line.endswith(b"\n"):
        raise _damaged("a header is cut")
    return key.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape"), rest


def _damaged(why: str) -> NodeError:
    return NodeError("tar", "the tar stream is damaged", why, "try again")
