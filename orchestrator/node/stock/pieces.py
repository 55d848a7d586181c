"""A folder that several threads fill with the pieces of its manifest.

A blob is compared with its digest before a byte of it is written, and existing content is read and compared
once: so everything here is correct, whoever sent it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from contextlib import suppress
from typing import BinaryIO, Callable, Collection

from ..base.descriptors import write_all
from ..base.fault import NodeError
from ..disk.below import Below, is_no_folder, parts_of
from ..disk.listing import walk
from ..disk.removing import remove
from .manifest import Blob, Manifest, blobs_of


class Pieces:
    """The pieces of a manifest that have arrived."""

    def __init__(
        self, folder: str, manifest: Manifest, held: Collection[int] = (), *, whole: bool = False
    ) -> None:
        """`held` are correct files that have other names too: they are never written to."""
        self.manifest = manifest
        self.on_piece: Callable[[int], None] = lambda _: None
        self._folder = Below(folder, made=True)
        self._held = set(held)
        self._made: set[int] = set()  # existing files of the right size and mode
        self._opening = threading.Lock()
        self._changed = threading.Condition()
        self.arriving: dict[int, bytearray] = {}  # from one sender each
        self._have = bytearray(b"\1" if whole else b"\0") * len(manifest.pieces)
        if not whole:
            self._look()

    def has(self, piece: int) -> bool:
        return self._have[piece] == 1

    def bits(self) -> str:
        """Return a bit for each existing piece, as hexadecimal digits; the first piece is the lowest bit."""
        return f"{int(''.join(map(str, reversed(self._have))) or '0', 2):x}"

    def part(self, piece: int, start: int, seconds: float) -> bytes:
        """Return what is here of a piece from `start` on, also unverified; b"" if nothing arrives in time."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.has(piece) or len(self.arriving.get(piece, b"")) > start, seconds
            )
            if not self.has(piece):
                return bytes(self.arriving.get(piece, b"")[start:])
        return b"".join(self._read(blob) for blob in self.manifest.pieces[piece])[start:]

    def add(self, piece: int, arrived: bytearray, part: bytes) -> None:
        """Add a part to what has arrived of a piece; store a whole one, or raise NodeError."""
        with self._changed:
            arrived += part
            self._changed.notify_all()
        if len(arrived) == self.manifest.length(piece):
            try:
                if not self.has(piece):
                    self._store(piece, memoryview(arrived))
            finally:
                self.arriving.pop(piece, None)

    def _store(self, piece: int, data: memoryview) -> None:
        for blob in self.manifest.pieces[piece]:
            part, data = data[: blob.size], data[blob.size :]
            if hashlib.sha256(part).hexdigest() != self.manifest.sha256(blob):
                raise NodeError("piece", f"piece {piece} is not what it should be", "its digest differs")
            if blob.file not in self._held:
                self._write(blob, part)
        with self._changed:
            self._have[piece] = 1
            self._changed.notify_all()
        self.on_piece(piece)

    def finish(self) -> int:
        """Check what rsync brought, create entries without content; return the number of missing pieces."""
        if 0 in self._have:
            self._look()
        missing = self._have.count(0)
        for number in range(0 if missing else len(self.manifest.files)):
            if number not in self._held and number not in self._made:
                os.close(self._make(number))
        for path, target in self.manifest.links.items() if not missing else ():
            *above, name = parts_of(path)
            with suppress(FileExistsError):  # `tidy` has kept what is correct
                os.symlink(target, name, dir_fd=self._folder.folder(above, make=True))
        return missing

    def _look(self) -> None:
        """Determine what exists."""
        self._made.clear()
        right = [self._right(number) for number in range(len(self.manifest.files))]
        for piece, blobs in enumerate(self.manifest.pieces):
            self._have[piece] = all(blob.at in right[blob.file] for blob in blobs)

    def _right(self, number: int) -> Collection[int]:
        """Return the offsets of a file's correct blobs; unusable entries are removed."""
        file, blobs = self.manifest.files[number], self.manifest.blobs(number)
        if number in self._held or not blobs:
            return blobs_of(file.size)
        try:
            fd = self._open(number, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or is_no_folder(error):
                return ()
            raise
        with open(fd, "rb", buffering=0) as stream:
            status, right = os.fstat(fd), set()
            is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            grown = is_own and status.st_nlink == 1 and status.st_size > file.size
            if grown:  # rsync has also sent what was appended to it since it was read
                with open(self._open(number, os.O_WRONLY), "ab") as longer:
                    longer.truncate(file.size)
            if is_own and (grown or status.st_size == file.size):
                right = {blob.at for blob in blobs if _sha256(stream, blob) == self.manifest.sha256(blob)}
            if status.st_nlink > 1 and len(right) == len(blobs) and stat.S_IMODE(status.st_mode) == file.mode:
                self._held.add(number)
            elif right and status.st_nlink == 1:
                os.fchmod(fd, file.mode)
                self._made.add(number)
            else:
                *above, name = parts_of(file.path)
                with self._opening:
                    os.unlink(name, dir_fd=self._folder.folder(above))
                return ()
        return right

    def _read(self, blob: Blob) -> bytes:
        fd = self._open(blob.file, os.O_RDONLY)
        try:
            data = os.pread(fd, blob.size, blob.at)
        finally:
            os.close(fd)
        if len(data) < blob.size:
            raise EOFError(f"{self.manifest.files[blob.file].path} has become shorter")
        return data

    def _write(self, blob: Blob, data: memoryview) -> None:
        fd = self._open(blob.file, os.O_WRONLY) if blob.file in self._made else self._make(blob.file)
        try:
            os.lseek(fd, blob.at, os.SEEK_SET)
            write_all(fd, data)
        finally:
            os.close(fd)

    def _make(self, number: int) -> int:
        file = self.manifest.files[number]
        fd = self._open(number, os.O_WRONLY | os.O_CREAT)
        if os.fstat(fd).st_size != file.size:
            os.ftruncate(fd, file.size)
        os.fchmod(fd, file.mode)
        self._made.add(number)
        return fd

    def _open(self, number: int, flags: int) -> int:
        *above, name = parts_of(self.manifest.files[number].path)
        with self._opening:
            folder = self._folder.folder(above, make=bool(flags & os.O_CREAT))
            return os.open(name, flags | os.O_NOFOLLOW, 0o600, dir_fd=folder)


def _sha256(stream: BinaryIO, blob: Blob) -> str:
    return hashlib.sha256(os.pread(stream.fileno(), blob.size, blob.at)).hexdigest()


def tidy(folder: str, manifest: Manifest) -> None:
    """Remove what is below a folder and not in a manifest, or of another kind."""
    files = {file.path for file in manifest.files}
    parents = {path.rpartition("/")[0] for path in (*files, *manifest.links)}
    while more := {path.rpartition("/")[0] for path in parents} - parents:
        parents |= more
    for path, entry in walk(folder, parents.__contains__):
        is_link = entry.is_symlink() and manifest.links.get(path) == os.readlink(entry.path)
        if not is_link and not (path in files and entry.is_file(follow_symlinks=False)):
            remove(entry.path)


def is_exactly(folder: str, manifest: Manifest) -> bool:
    """Return True if a folder contains exactly what a manifest lists; reads all of it.

    What is never part of a manifest (devices, pipes, other links, folders named .git) may exist.
    """
    paths = {file.path: number for number, file in enumerate(manifest.files)}
    count = 0
    try:
        for path, entry in walk(folder, lambda path: os.path.basename(path).lower() != ".git"):
            if entry.is_file(follow_symlinks=False):
                if path not in paths or not is_right(entry.path, manifest, paths[path]):
                    return False
                count += 1
            elif entry.is_symlink():
                count += manifest.links.get(path) == os.readlink(entry.path)
    except OSError:
        return False
    return count == len(manifest.rows)


def is_right(path: str, manifest: Manifest, number: int) -> bool:
    """Return True if a file has the content that a manifest lists."""
    file = manifest.files[number]
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", 0) as stream:
            status = os.fstat(stream.fileno())
            return (
                stat.S_ISREG(status.st_mode)
                and status.st_size == file.size
                and all(_sha256(stream, blob) == manifest.sha256(blob) for blob in manifest.blobs(number))
            )
    except OSError:
        return False
