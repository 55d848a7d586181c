"""The locks of environments that this machine has resolved, by the name of the recipe and of the lock."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.node.base.fault import reason
from orchestrator.plainfile import make_folder, make_way, read_plain, write_atomically
from orchestrator.store.known import state_root

_MOST = 16 << 20  # bytes of a lock


def read_lock(name: str) -> str | None:
    """Read a lock file's text; None where there is none."""
    try:
        return read_plain(_path(name), _MOST).decode()
    except (OSError, ValueError):
        return None


def write_lock(name: str, text: str) -> None:
    """Keep it; raise UsageError when it cannot be written."""
    path = _path(name)
    try:
        make_folder(path.parent)
        make_way(path)
        write_atomically(path, text.encode())
    except OSError as error:
        raise UsageError(
            f"cannot keep the lock of the environment in {path.parent}",
            why=reason(error),
            hint="set XDG_STATE_HOME to a folder of yours on a disk with space",
        ) from error


def _path(name: str) -> Path:
    return state_root() / "locks" / f"{name}.txt"
