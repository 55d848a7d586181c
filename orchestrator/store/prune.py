"""Removing the folders of old runs on the controller; one that goes on, or may, is left alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import OrchestrateError
from orchestrator.events import RunEnded
from orchestrator.store.folder import NEW, RunFolder
from orchestrator.store.known import run_folders, runs_root
from orchestrator.store.reader import events_of

_FRESH = 10.0  # seconds; younger than this, a launch may be making it
_GONE = ".gone-"
_BRIDGE = "orch-"  # sockets of a sync whose keeper was killed
_DAY = 86_400.0


@dataclass(frozen=True)
class Pruned:
    """Folders that went, or would."""

    count: int
    bytes: int
    gone: tuple[str, ...]
    gone_bytes: int
    unsure: tuple[str, ...]  # old, and perhaps alive on hosts that were not asked
    failed: tuple[str, ...]


def prune(
    alive: Collection[str],
    asked: Collection[str],
    *,
    older: float,
    dry: bool,
    root: Path | None = None,
) -> Pruned:
    """Remove run folders that are old, the oldest first.

    `alive` are the runs that live on a node, `asked` the hosts that said so.
    """
    base = root or runs_root()
    found = sorted((*_usage(one.path), one.run, one) for one in run_folders(base))
    total = left = sum(size for _, size, _, _ in found)
    gone: list[str] = []
    unsure: list[str] = []
    failed: list[str] = []
    for used, size, run, folder in found:
        if time.time() - used < max(older, _FRESH) or run in alive or folder.has_keeper():
            continue
        if not _is_over(folder, asked):
            unsure.append(run)
            continue
        try:
            if not dry and not _remove(folder):
                continue
        except (OSError, OrchestrateError) as error:
            failed.append(f"{folder.path}: {error}")
            continue
        left -= size
        gone.append(run)
    if not dry:
        _remove_scraps(base)
    return Pruned(len(found), total, tuple(gone), total - left, tuple(unsure), tuple(failed))


def kept(root: Path | None = None) -> frozenset[str]:
    """The runs with a keeper on this machine."""
    return frozenset(folder.run for folder in run_folders(root or runs_root()) if folder.has_keeper())


def _is_over(folder: RunFolder, asked: Collection[str]) -> bool:
    """Return True if a run's end was told; or all of its hosts were asked, and it lives on none."""
    try:
        ends = [stamped.event for stamped in events_of(folder) if isinstance(stamped.event, RunEnded)]
    except OrchestrateError:  # it cannot be read
        return False
    if ends and not ends[-1].unproven:
        return True
    try:
        hosts = {host.name for host in folder.read_plan().hosts}
    except OrchestrateError:
        # Without a plan it is a launch that was killed in its first moment: it has reached nobody.
        return not os.path.lexists(folder.plan)
    return hosts <= set(asked)


def _remove(folder: RunFolder) -> bool:
    """With the keeper's lock in hand; False when somebody has just become its keeper."""
    lock = folder.take_lock()
    if lock is None:
        return False
    try:
        hidden = folder.path.with_name(_GONE + folder.run)
        folder.path.rename(hidden)
        shutil.rmtree(hidden)
    finally:
        os.close(lock)
    return True


def _remove_scraps(base: Path) -> None:
    """Remove what a crash interrupted: folders half removed, sockets of nobody."""
    for path in base.glob(f"{_GONE}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in (*(base / NEW).glob("*"), *Path(tempfile.gettempdir()).glob(f"{_BRIDGE}*")):
        try:
            found = path.lstat()
        except OSError:
            continue
        if found.st_uid == os.getuid() and time.time() - found.st_mtime > _DAY and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _usage(path: Path) -> tuple[float, int]:
    """When something in a folder was last written, and the bytes that it takes on the disk."""
    found: list[os.stat_result] = []
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                found.append((Path(folder) / name).lstat())
    newest = max((one.st_mtime for one in found), default=path.stat().st_mtime)
    return newest, sum(one.st_blocks * 512 for one in found)
