"""Prepared sets of tensorflow-datasets as files on this machine: found, and cut into more files.

A prepared set is <data_dir>/<name>/[<config>/]<version> with TFRecords and a dataset_info.json, which says
how many examples each file has. Neither reading nor cutting it needs TensorFlow: a record is copied as it is.

A set that a host has prepared is a stranger's word: names of files are names in the set's own folder and
nothing else, and numbers are numbers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from orchestrator.errors import UsageError
from orchestrator.node.base.fault import NodeError, reason
from orchestrator.node.disk.below import parts_of, shortened
from orchestrator.node.disk.removing import remove
from orchestrator.plainfile import at_home, read_plain

INFO = "dataset_info.json"
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")
_LENGTH = struct.Struct("<Q")
_FRAME = 12  # bytes before a record's content: its length and that one's checksum; 4 more come behind it
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_MOST_INFO = 64 << 20  # bytes of a dataset_info.json
_COUNT = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True)
class SetName:
    """`name/config:version`, the latter two optional."""

    name: str
    config: str = ""
    version: str = ""

    @classmethod
    def parse(cls, text: str) -> SetName:
        left, _, version = text.partition(":")
        name, _, config = left.partition("/")
        return cls(name, config, version)

    def __str__(self) -> str:
        config = f"/{self.config}" if self.config else ""
        return f"{self.name}{config}{':' if self.version else ''}{self.version}"


def own_data_dir(given: str | None) -> Path:
    """Where this machine has its prepared sets."""
    return at_home(given or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def find_set(root: Path, wanted: SetName) -> Path | None:
    """The folder of a prepared set below a data_dir, its newest version unless one is named."""
    above = root / wanted.name / wanted.config
    found = _versions(above)
    if not found and not wanted.config and above.is_dir():  # a set whose only form has a name
        configs = [child for child in sorted(above.iterdir()) if _versions(child)]
        found = _versions(configs[0]) if len(configs) == 1 else []
    if wanted.version:
        found = [path for path in found if path.name == wanted.version]
    return found[-1] if found else None


def _versions(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = [one for one in folder.iterdir() if _VERSION.fullmatch(one.name) and (one / INFO).is_file()]
    return sorted(found, key=lambda one: tuple(map(int, one.name.split("."))))


@dataclass(frozen=True)
class _Split:
    """A part of a set: its examples file by file, and the names of these files."""

    row: dict[str, Any]  # as it stands in the file
    name: str
    lengths: tuple[int, ...]
    template: str  # of the file names; what is left of it is how many files there are

    def names(self, files: int) -> list[str]:
        return [
            self.template.replace("{SHARD_X_OF_Y}", f"{number:05d}-of-{files:05d}") for number in range(files)
        ]


def fewest_files(folder: Path) -> int:
    """Count the files of the training part of a prepared set."""
    return next((len(one.lengths) for one in _splits(folder, _info(folder)) if one.name == "train"), 0)


def reshard(folder: Path, into: Path, files: int) -> None:
    """Make `into` the same set, each part that has fewer files and enough examples in `files` of them.

    The order of the examples stays. Raise UsageError for a set that is not made of TFRecords.
    """
    info = _info(folder)
    if (kind := info.get("fileFormat", "tfrecord")) != "tfrecord":
        raise UsageError(
            f"cannot cut {folder} into more files",
            why=f"it holds {shortened(str(kind))}, not TFRecords",
            hint="remove files_per_worker under [data]",
        )
    cut = [one for one in _splits(folder, info) if len(one.lengths) < files <= sum(one.lengths)]
    hidden = into.with_name(f".{into.name}.{os.getpid()}")
    remove(str(hidden))
    try:
        hidden.mkdir(parents=True)
        replaced: set[str] = set()
        for split in cut:
            old, new = split.names(len(split.lengths)), split.names(files)
            replaced.update(old)
            share, more = divmod(sum(split.lengths), files)
            wanted = [share + (number < more) for number in range(files)]
            _copy(folder, [folder / name for name in old], [hidden / name for name in new], wanted)
            split.row["shardLengths"] = [str(one) for one in wanted]
        for path in folder.iterdir():
            if path.name not in replaced and path.name != INFO and path.is_file():
                shutil.copy2(path, hidden / path.name)
        (hidden / INFO).write_text(json.dumps(info, indent=2), encoding="utf-8")
        remove(str(into))
        hidden.rename(into)
    finally:
        remove(str(hidden))


def _info(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_plain(folder / INFO, _MOST_INFO, follow=True))
    except RecursionError:
        raise _wrong(folder, "its JSON is nested too deep") from None
    except (OSError, ValueError) as error:
        raise _wrong(folder, str(error)) from error
    if not isinstance(found, dict):
        raise _wrong(folder, "it is not an object")
    return found


def _splits(folder: Path, info: dict[str, Any]) -> list[_Split]:
    """Raise UsageError for what no builder of a set writes."""
    rows = info.get("splits", [])
    if not isinstance(rows, list):
        raise _wrong(folder, "its `splits` are no list")
    return [_split(folder, info, row) for row in rows]


def _split(folder: Path, info: dict[str, Any], row: object) -> _Split:
    if not isinstance(row, dict):
        raise _wrong(folder, "one of its `splits` is no object")
    name, lengths = row.get("name"), row.get("shardLengths", [])
    if not isinstance(name, str) or not isinstance(lengths, list):
        raise _wrong(folder, "one of its `splits` has no name, or no list of lengths")
    if not all(_COUNT.fullmatch(str(one)) for one in lengths):
        raise _wrong(folder, f"the lengths of {shortened(name)} are no numbers")
    template = str(row.get("filepathTemplate") or _TEMPLATE)
    known = {"DATASET": str(info.get("name", "")), "SPLIT": name, "FILEFORMAT": "tfrecord"}
    for key, value in known.items():
        template = template.replace(f"{{{key}}}", value)
    try:
        (_only,) = parts_of(template)
    except (NodeError, ValueError):
        raise _wrong(folder, f"{shortened(template)} is no name of a file in that folder") from None
    return _Split(row, name, tuple(map(int, lengths)), template)


def _wrong(folder: Path, why: str) -> UsageError:
    return UsageError(
        f"cannot read {folder / INFO}",
        why=why,
        hint=f"move {folder} away: the next launch has a host prepare it again",
    )


def _copy(folder: Path, old: Sequence[Path], new: Sequence[Path], counts: Sequence[int]) -> None:
    records = (record for path in old for record in _records(path))
    for path, count in zip(new, counts, strict=True):
        with path.open("wb") as file:
            for _ in range(count):
                record = next(records, None)
                if record is None:
                    raise _wrong(folder, f"its files hold fewer examples than the {sum(counts):,} it names")
                file.write(record)


def _records(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while head := file.read(_FRAME):
                yield head + _rest(file, head, path)
    except OSError as error:
        raise UsageError(f"cannot read {path}", why=reason(error)) from error


def _rest(file: IO[bytes], head: bytes, path: Path) -> bytes:
    length = _LENGTH.unpack(head[:8])[0] + 4 if len(head) == _FRAME else 0
    rest = file.read(length) if length < 1 << 31 else b""
    if not rest or len(rest) != length:
        raise UsageError(f"{path} is cut or damaged", why="a record has no end", hint="prepare the set again")
    return rest
