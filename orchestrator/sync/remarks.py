"""Remarks about a tree: files that were left out, and folders that make it large. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from orchestrator.node.stock.manifest import File, Manifest
from orchestrator.sync.private import Reason
from orchestrator.text import size

WARN_SIZE = 50 * 1000 * 1000
_NAMED = 4  # paths of one kind in one line
_LARGEST = 3
_SAID = (Reason.SECRET, Reason.KEY, Reason.ENVIRONMENT)  # nobody misses the rest; a dry run names it


def left_out(paths: Mapping[str, Reason]) -> Iterator[str]:
    """One line, for secrets and environments, with the way to send one all the same."""
    kinds = {reason: found for reason, found in by_reason(paths) if reason in _SAID}
    named = [f"{_some(found)} ({reason})" for reason, found in kinds.items()]
    if named:
        yield f"left out of the code: {', '.join(named)}; {how_to_send(next(iter(kinds.values()))[0])}"


def how_to_send(path: str) -> str:
    return f"to send one, write it into .orchestrateignore with a ! before it: !/{path}"


def by_reason(paths: Mapping[str, Reason]) -> Iterator[tuple[Reason, list[str]]]:
    """Return what was left out, for each reason that there is."""
    for reason in Reason:
        if found := sorted(path for path, why in paths.items() if why is reason):
            yield reason, found


def quoted_keys(paths: Sequence[str]) -> Iterator[str]:
    if paths:
        yield f"{_some(paths)}: sent, though it contains a private key"


def special(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        yield f"{path} is not a file (a socket, a pipe or a device) and was left out"


def weight(manifest: Manifest) -> Iterator[str]:
    """Return what a large tree consists of; nothing about a small one."""
    if manifest.total < WARN_SIZE:
        return
    largest = ", ".join(f"{path} {size(many)}" for path, many, _ in folders(manifest)[:_LARGEST])
    yield (
        f"the code has {size(manifest.total)}, sent to every host: {largest}; list what the tasks do not need"
        " in .orchestrateignore, and keep data on the hosts"
    )


def folders(manifest: Manifest) -> list[tuple[str, int, int]]:
    """(path, bytes, files) of what stands at the top of the tree, the largest first.

    A folder that holds nearly all of a tree is opened, so that what is large in it is seen.
    """
    files = manifest.files
    rows = _below(files, "")
    while rows and rows[0][0].endswith("/") and rows[0][1] > 0.8 * manifest.total:
        inner = _below([entry for entry in files if entry.path.startswith(rows[0][0])], rows[0][0])
        if len(inner) < 2 or not inner[0][0].endswith("/"):
            break
        rows = sorted([*inner, *rows[1:]], key=_by_size)
    return rows


def _below(files: Iterable[File], folder: str) -> list[tuple[str, int, int]]:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for entry in files:
        head, slash, _ = entry.path[len(folder) :].partition("/")
        sizes[folder + head + slash] += entry.size
        counts[folder + head + slash] += 1
    return sorted(((path, sizes[path], counts[path]) for path in sizes), key=_by_size)


def _by_size(row: tuple[str, int, int]) -> tuple[int, str]:
    return -row[1], row[0]


def _some(paths: Collection[str]) -> str:
    first = list(paths)[:_NAMED]
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(first) + more
