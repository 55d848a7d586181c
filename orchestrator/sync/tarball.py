"""A tree as one tar stream, made from the manifest: the same bytes for every host."""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from orchestrator.errors import ClusterError
from orchestrator.sync.manifest import Entry, File

CHUNK = 1 << 20
_END = b"\0" * (2 * tarfile.BLOCKSIZE)
_LATEST = 8**11 - 1  # seconds that a header has digits for: the year 2242


class ChangedError(ClusterError):
    """Files are no longer what they were when they were read; the same for every host."""

    def __init__(self, paths: Sequence[str]) -> None:
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        super().__init__(
            "the code changed while it was sent",
            why=f"{', '.join(paths[:3])}{more}: not what was read a moment ago",
            hint="list what changes all the time in .orchestrateignore",
        )
        self.paths = tuple(paths)


def chunks(root: Path, entries: Iterable[Entry], kept: Mapping[str, bytes]) -> Iterator[bytes]:
    """The stream in pieces of about `CHUNK` bytes; raise ChangedError. `kept` has contents by path."""
    pending = bytearray()
    for piece in _pieces(root, entries, kept):
        pending += piece
        if len(pending) >= CHUNK:
            yield bytes(pending)
            pending.clear()
    yield bytes(pending + _END)


def _pieces(root: Path, entries: Iterable[Entry], kept: Mapping[str, bytes]) -> Iterator[bytes]:
    for entry in entries:
        yield _header(root, entry)
        if isinstance(entry, File):
            content = kept.get(entry.path)
            yield from _content(root, entry) if content is None else (content,)
            yield b"\0" * (-entry.size % tarfile.BLOCKSIZE)


def _header(root: Path, entry: Entry) -> bytes:
    info = tarfile.TarInfo(entry.path)
    with contextlib.suppress(OSError):  # gone: its content says so
        info.mtime = min(max(0, int((root / entry.path).lstat().st_mtime)), _LATEST)
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
                    raise ChangedError([entry.path])
                left -= len(data)
                yield data
    except OSError as error:
        raise ChangedError([entry.path]) from error
