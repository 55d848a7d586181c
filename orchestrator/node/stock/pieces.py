"""Data that comes in pieces: fixed slices of all its files laid end to end, each with a digest of its own.

The digests are the controller's. A piece is compared with its digest before a byte of it is written, and
those that were there before this process are read and compared once; so what is whole is right, whoever
sent it. `<folder>.pieces` holds a byte for each piece: which an interrupted transfer had.
"""

from __future__ import annotations

import bisect
import hashlib
import os
import stat
import threading

from ..base.annotations import Any, Callable, Collection, Iterator, Sequence, TypeAlias
from ..base.fault import NodeError
from ..disk.below import Below, parts_of

Manifest: TypeAlias = "Sequence[dict[str, Any]]"

DIGEST = 32  # bytes of a sha256
_PRESENT = 1


class Pieces:
    """A folder that fills up; several threads write and read pieces."""

    def __init__(
        self,
        folder: str,
        manifest: Manifest,
        size: int,
        digests: bytes,
        held: Collection[str] = (),
        *,
        whole: bool = False,
    ) -> None:
        self.size = size
        self._folder = Below(folder, made=True)
        self._files = [(parts_of(one["path"]), int(one["size"]), int(one["mode"])) for one in manifest]
        self._held = {parts_of(path) for path in held}  # whole, and shared with other data: never written
        self._starts: list[int] = []  # where each file begins in the whole
        self.total = 0
        for _, length, _ in self._files:
            self._starts.append(self.total)
            self.total += length
        self.count = -(-self.total // size)
        self._digests = digests
        if len(digests) != self.count * DIGEST:
            raise NodeError("protocol", f"{len(digests)} bytes of digests for {self.count} pieces")
        self._have = bytearray(self.count)
        self._opening = threading.Lock()
        self.changed = threading.Condition()
        self.on_piece: Callable[[int], None] = lambda _: None
        self._map = -1
        if whole:
            self._have = bytearray(b"\1" * self.count)
            return
        self._map = os.open(map_of(folder), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._make_files()
        self._resume()

    def has(self, piece: int) -> bool:
        return 0 <= piece < self.count and self._have[piece] == _PRESENT

    @property
    def whole(self) -> bool:
        return self.here == self.count

    @property
    def here(self) -> int:
        """How many pieces are here."""
        return self._have.count(_PRESENT)

    def bits(self) -> str:
        """A bit for each piece that is here, as hexadecimal digits; the first piece is the lowest bit."""
        number = 0
        for start in range(0, self.count, 8):
            byte = sum(1 << place for place, one in enumerate(self._have[start : start + 8]) if one)
            number |= byte << start
        return f"{number:x}"

    def read(self, piece: int) -> bytes:
        return b"".join(self._read(number, at, length) for number, at, length in self._slices(piece))

    def write(self, piece: int, data: bytes) -> None:
        """Take a piece; raise NodeError (kind "piece") when it is not what the controller knows."""
        if not 0 <= piece < self.count:
            raise NodeError("piece", f"there is no piece {piece}")
        if self.has(piece):
            return
        wanted = self._digests[piece * DIGEST : (piece + 1) * DIGEST]
        if hashlib.sha256(data).digest() != wanted:
            raise NodeError("piece", f"piece {piece} is not what it should be", "its digest is another one")
        view = memoryview(data)
        for number, at, length in self._slices(piece):
            part, view = view[:length], view[length:]
            if self._files[number][0] not in self._held:
                self._write(number, at, part)
        self._note(piece)
        self.on_piece(piece)

    def wait(self, piece: int, seconds: float) -> bool:
        """Whether a piece is here by then."""
        with self.changed:
            return self.changed.wait_for(lambda: self.has(piece), seconds)

    def _note(self, piece: int) -> None:
        os.pwrite(self._map, b"\1", piece)
        with self.changed:
            self._have[piece] = _PRESENT
            self.changed.notify_all()

    def _make_files(self) -> None:
        for number, (parts, length, mode) in enumerate(self._files):
            if parts in self._held:
                continue
            fd = self._open(number, os.O_RDWR | os.O_CREAT)
            try:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                    raise NodeError("data", f"{'/'.join(parts)} is not a file of its own")
                if found.st_size != length:
                    os.ftruncate(fd, length)
                os.fchmod(fd, mode)
            finally:
                os.close(fd)

    def _resume(self) -> None:
        """Believe what the map says after reading it again; what lies in held files needs no map."""
        noted = os.pread(self._map, self.count, 0).ljust(self.count, b"\0")
        os.ftruncate(self._map, self.count)
        for piece in range(self.count):
            slices = list(self._slices(piece))
            if noted[piece] != _PRESENT and not all(
                self._files[one][0] in self._held for one, _, _ in slices
            ):
                continue
            if hashlib.sha256(self.read(piece)).digest() == self._digests[piece * DIGEST :][:DIGEST]:
                self._note(piece)
            else:
                os.pwrite(self._map, b"\0", piece)

    def _slices(self, piece: int) -> Iterator[tuple[int, int, int]]:
        """(file, place in it, length) of what a piece consists of."""
        start, end = piece * self.size, min((piece + 1) * self.size, self.total)
        number = bisect.bisect_right(self._starts, start) - 1
        while start < end:
            length = min(end, self._starts[number] + self._files[number][1]) - start
            if length > 0:
                yield number, start - self._starts[number], length
                start += length
            number += 1

    def _open(self, number: int, flags: int) -> int:
        *above, name = self._files[number][0]
        with self._opening:
            folder = self._folder.folder(above, make=bool(flags & os.O_CREAT))
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)

    def _read(self, number: int, at: int, length: int) -> bytes:
        fd = self._open(number, os.O_RDONLY)
        try:
            return os.pread(fd, length, at)
        finally:
            os.close(fd)

    def _write(self, number: int, at: int, data: memoryview) -> None:
        fd = self._open(number, os.O_WRONLY)
        try:
            while data:
                written = os.pwrite(fd, data, at)
                data, at = data[written:], at + written
        finally:
            os.close(fd)


def map_of(folder: str) -> str:
    return f"{folder}.pieces"
