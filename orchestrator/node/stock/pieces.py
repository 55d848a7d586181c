"""A folder that is filled with the pieces of its manifest, by several threads.

A blob is compared with its digest before a byte of it is written, and what was there before this process is
read and compared once: so what is here is right, whoever sent it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from typing import BinaryIO, Callable, Collection

from ..base.descriptors import write_all
from ..base.fault import NodeError
from ..disk.below import Below, is_no_folder, parts_of
from ..disk.listing import walk
from ..disk.removing import remove
from .manifest import Blob, Manifest, blobs_of


class Pieces:
    """The pieces of a manifest that have come."""

    def __init__(
        self, folder: str, manifest: Manifest, held: Collection[int] = (), *, whole: bool = False
    ) -> None:
        """`held` are files that are right, and have other names: they are never written to."""
        self.manifest = manifest
        self.on_piece: Callable[[int], None] = lambda _: None
        self._folder = Below(folder, made=True)
        self._held = set(held)
        self._made: set[int] = set()  # files that are there, in their size and mode
        self._opening = threading.Lock()
        self._changed = threading.Condition()
        self._have = bytearray(b"\1" if whole else b"\0") * len(manifest.pieces)
        if not whole:
            self._look()

    def has(self, piece: int) -> bool:
        return 0 <= piece < len(self._have) and self._have[piece] == 1

    def bits(self) -> str:
        """A bit for each piece that is here, as hexadecimal digits; the first piece is the lowest bit."""
        return f"{int(''.join(map(str, reversed(self._have))) or '0', 2):x}"

    def read(self, piece: int) -> bytes:
        return b"".join(self._read(blob) for blob in self.manifest.pieces[piece])

    def write(self, piece: int, data: bytes) -> None:
        """Take a piece; raise NodeError when it is not what the manifest says."""
        if not 0 <= piece < len(self._have):
            raise NodeError("piece", f"there is no piece {piece}")
        if self.has(piece):
            return
        start = 0
        for blob in self.manifest.pieces[piece]:
            part = data[start : start + blob.size]
            start += blob.size
            if hashlib.sha256(part).hexdigest() != self.manifest.sha256(blob):
                raise NodeError(
                    "piece", f"piece {piece} is not what it should be", "its digest is another one"
                )
            if blob.file not in self._held:
                self._write(blob, part)
        with self._changed:
            self._have[piece] = 1
            self._changed.notify_all()
        self.on_piece(piece)

    def wait(self, piece: int, seconds: float) -> bool:
        """Tell whether a piece is here by then."""
        with self._changed:
            return self._changed.wait_for(lambda: self.has(piece), seconds)

    def finish(self) -> int:
        """Look for what rsync brought, make what has no content, and return how many pieces are missing."""
        if 0 in self._have:
            self._look()
        missing = self._have.count(0)
        for number in range(0 if missing else len(self.manifest.files)):
            if number not in self._held and number not in self._made:
                os.close(self._make(number))
        for path, target in self.manifest.links.items() if not missing else ():
            *above, name = parts_of(path)
            try:
                os.symlink(target, name, dir_fd=self._folder.folder(above, make=True))
            except FileExistsError:
                pass  # `tidy` has left what is right
        return missing

    def _look(self) -> None:
        """Find out what is there."""
        self._made.clear()
        right = [self._right(number) for number in range(len(self.manifest.files))]
        for piece, blobs in enumerate(self.manifest.pieces):
            self._have[piece] = all(blob.at in right[blob.file] for blob in blobs)

    def _right(self, number: int) -> Collection[int]:
        """The offsets of a file's blobs that are right; what cannot become the file is removed."""
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
            found, right = os.fstat(fd), set()
            if stat.S_ISREG(found.st_mode) and found.st_size == file.size and found.st_uid == os.geteuid():
                right = {blob.at for blob in blobs if _sha256(stream, blob) == self.manifest.sha256(blob)}
            if found.st_nlink > 1 and len(right) == len(blobs) and stat.S_IMODE(found.st_mode) == file.mode:
                self._held.add(number)
            elif right and found.st_nlink == 1:
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
            return os.pread(fd, blob.size, blob.at)
        finally:
            os.close(fd)

    def _write(self, blob: Blob, data: bytes) -> None:
        fd = self._open(blob.file, os.O_WRONLY) if blob.file in self._made else self._make(blob.file)
        try:
            os.lseek(fd, blob.at, os.SEEK_SET)
            write_all(fd, data)
        finally:
            os.close(fd)

    def _make(self, number: int) -> int:
        """Have a file of the right size and mode; return its descriptor."""
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
    """Tell whether a folder holds what a manifest says and no other files; read all of it.

    What is never part of a manifest (devices, pipes, other links, folders named .git) may be there.
    """
    paths = {file.path: number for number, file in enumerate(manifest.files)}
    seen = 0
    try:
        for path, entry in walk(folder, lambda path: os.path.basename(path).lower() != ".git"):
            if entry.is_file(follow_symlinks=False):
                if path not in paths or not is_right(entry.path, manifest, paths[path]):
                    return False
                seen += 1
            elif entry.is_symlink():
                seen += manifest.links.get(path) == os.readlink(entry.path)
    except OSError:
        return False
    return seen == len(manifest.rows)


def is_right(path: str, manifest: Manifest, number: int) -> bool:
    """Tell whether a file has the content that a manifest says."""
    file = manifest.files[number]
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", 0) as stream:
            found = os.fstat(stream.fileno())
            return (
                stat.S_ISREG(found.st_mode)
                and found.st_size == file.size
                and all(_sha256(stream, blob) == manifest.sha256(blob) for blob in manifest.blobs(number))
            )
    except OSError:
        return False
