"""A tree as one tar stream, made from the manifest: the same bytes for every host."""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import ClusterError
from orchestrator.manifest import Entry, File, Manifest

CHUNK = 1 << 20
_END = b"\0" * (2 * tarfile.BLOCKSIZE)


def chunks(root: Path, manifest: Manifest) -> Iterator[bytes]:
    """The stream in pieces of about `CHUNK` bytes; raise ClusterError when a file has changed."""
    pending = bytearray()
    for piece in _pieces(root, manifest):
        pending += piece
        if len(pending) >= CHUNK:
            yield bytes(pending)
            pending.clear()
    yield bytes(pending + _END)


def _pieces(root: Path, manifest: Manifest) -> Iterator[bytes]:
    for entry in manifest.entries:
        yield _header(root, entry)
        if isinstance(entry, File):
            yield from _content(root, entry)
            yield b"\0" * (-entry.size % tarfile.BLOCKSIZE)


def _header(root: Path, entry: Entry) -> bytes:
    info = tarfile.TarInfo(entry.path)
    with contextlib.suppress(OSError):  # gone: its content says so
        info.mtime = int((root / entry.path).lstat().st_mtime)
    if isinstance(entry, File):
        info.size, info.mode = entry.size, 0o755 if entry.executable else 0o644
    else:
        info.type, info.linkname = tarfile.SYMTYPE, entry.target
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _content(root: Path, entry: File) -> Iterator[bytes]:
    left = entry.size
    try:
        with (root / entry.path).open("rb", buffering=0) as stream:
            while left:
                data = stream.read(min(left, CHUNK))
                if not data:
                    raise changed([entry.path])
                left -= len(data)
                yield data
    except OSError as error:
        raise changed([entry.path]) from error


def changed(paths: list[str]) -> ClusterError:
    """One error for all hosts: what is sent must be what was read."""
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ClusterError(
        "the code changed while it was sent",
        why=f"{', '.join(paths[:3])}{more}: not what was read a moment ago",
        hint="let the editor or the job that writes there finish, or list its files in .orchestrateignore",
    )
