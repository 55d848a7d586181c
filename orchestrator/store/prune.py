"""Removing the folders of old runs on the controller; one that goes on, or may, is left alone."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection

from msgspec import Struct

from orchestrator.errors import OrchestrateError
from orchestrator.node.disk.removing import measure
from orchestrator.store.folder import NEW, RunFolder
from orchestrator.store.known import run_folders, runs_root
from orchestrator.store.standing import over

_FRESH = 10.0  # seconds; younger than this, a launch may be making it
_GONE = ".gone-"
_DAY = 86_400.0


class Pruned(Struct, frozen=True):
    """Folders that went, or would."""

    count: int
    bytes: int
    gone: tuple[str, ...]
    gone_bytes: int
    unsure: tuple[str, ...]  # old, and perhaps alive on hosts that were not asked
    failed: tuple[str, ...]


def prune(alive: Collection[str], asked: Collection[str], *, older: float, dry: bool) -> Pruned:
    """Remove run folders that are old, the oldest first.

    `alive` are the runs that live on a node, `asked` the hosts that said so.
    """
    base = runs_root()
    found = [(measure(str(folder.path)), folder) for folder in run_folders(base)]
    total = left = sum(measured.size for measured, _ in found)
    gone: list[str] = []
    unsure: list[str] = []
    failed: list[str] = []
    for measured, folder in sorted(found, key=lambda pair: pair[0].used):
        run, age = folder.run, time.time() - measured.used
        if age < max(older, _FRESH) or run in alive or folder.has_keeper():
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
        left -= measured.size
        gone.append(run)
    if not dry:  # also what a crash interrupted: folders half removed, and half made a day ago
        half_made = (path for path in (base / NEW).glob("*") if time.time() - measure(str(path)).used > _DAY)
        for path in (*base.glob(f"{_GONE}*"), *half_made):
            shutil.rmtree(path, ignore_errors=True)
    return Pruned(len(found), total, tuple(gone), total - left, tuple(unsure), tuple(failed))


def kept() -> frozenset[str]:
    """The runs with a keeper on this machine."""
    return frozenset(folder.run for folder in run_folders(runs_root()) if folder.has_keeper())


def _is_over(folder: RunFolder, asked: Collection[str]) -> bool:
    """Return True if a run's end was told; or all of its hosts were asked, and it lives on none."""
    try:
        if over(folder) is not None:
            return True
    except OrchestrateError:  # it cannot be read
        return False
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
