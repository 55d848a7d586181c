"""Removing the folders of old runs on the controller, except those that are or may be alive."""

import os
import shutil
import time
from collections.abc import Collection

from orchestrator.errors import OrchestrateError
from orchestrator.node.disk.removing import measure
from orchestrator.store.folder import NEW, RunFolder
from orchestrator.store.known import runs, runs_root
from orchestrator.store.standing import over
from orchestrator.value import Value

_FRESH = 10.0  # seconds; a younger one may belong to a launch in progress
_GONE = ".gone-"
_DAY = 86_400.0


class Pruned(Value):
    """Folders that were removed, or would be."""

    count: int
    bytes: int
    gone: tuple[str, ...]
    gone_bytes: int
    unsure: tuple[str, ...]  # old, but possibly alive on hosts that were not asked
    failed: tuple[str, ...]


def prune(alive: Collection[str], answering: Collection[str], *, older: float, dry: bool) -> Pruned:
    """Remove old run folders, the oldest first.

    `alive` are the runs that live on a node, `answering` the hosts that replied.
    """
    base = runs_root()
    measured_runs = [(measure(str(folder.path)), folder) for folder in runs()]
    total = remaining = sum(measured.size for measured, _ in measured_runs)
    removed: list[str] = []
    unsure: list[str] = []
    failed: list[str] = []
    for measured, folder in sorted(measured_runs, key=lambda pair: pair[0].used):
        run, age = folder.run, time.time() - measured.used
        if age < max(older, _FRESH) or run in alive or folder.has_keeper():
            continue
        if not _is_over(folder, answering):
            unsure.append(run)
            continue
        try:
            if not dry and not _remove(folder):
                continue
        except (OSError, OrchestrateError) as error:
            failed.append(f"{folder.path}: {error}")
            continue
        remaining -= measured.size
        removed.append(run)
    if not dry:  # also what a crash left: folders half removed, or half created a day ago
        half_made = (path for path in (base / NEW).glob("*") if time.time() - measure(str(path)).used > _DAY)
        for path in (*base.glob(f"{_GONE}*"), *half_made):
            shutil.rmtree(path, ignore_errors=True)
    return Pruned(len(measured_runs), total, tuple(removed), total - remaining, tuple(unsure), tuple(failed))


def kept() -> frozenset[str]:
    """Return the runs with a keeper on this machine."""
    return frozenset(folder.run for folder in runs() if folder.has_keeper())


def _is_over(folder: RunFolder, answering: Collection[str]) -> bool:
    """Return True if a run's end is recorded; or if all of its hosts were asked and it lives on none."""
    try:
        if over(folder) is not None:
            return True
    except OrchestrateError:  # it cannot be read
        return False
    try:
        hosts = {host.name for host in folder.read_plan().hosts}
    except OrchestrateError:
        # Without a plan it is a launch that was killed in its first moment and never reached a host.
        return not os.path.lexists(folder.plan)
    return hosts <= set(answering)


def _remove(folder: RunFolder) -> bool:
    """Remove it while holding the keeper's lock; return False if it has just got a keeper."""
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
