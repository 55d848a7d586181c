"""Hosts that were validated, from one launch to the next: an empty file for each host and subject.

It is a convenience: what cannot be read is not remembered, and a full disk forgets.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from pathlib import Path
from typing import Any

from orchestrator.model import Host, TaskSpec
from orchestrator.plainfile import make_folder

DAY = 86_400.0  # seconds that a validation counts


def subject(spec: TaskSpec, tree: str, state: str) -> str:
    """Digest what is validated: program, options, environment and host.

    `tree` is the digest of the program, `state` the host's own.
    """
    return _digest([spec.argv, sorted(spec.env.items()), spec.setup, tree, state])


class Validations:
    """The memory in one folder; other commands may use it at the same time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def age(self, host: Host, subject: str) -> float | None:
        """How many seconds ago this was validated on a host; None: not within a day."""
        try:
            age = time.time() - self._path(host, subject).lstat().st_mtime
        except OSError:
            return None
        return age if 0 <= age < DAY else None  # a clock may have been set back

    def write(self, host: Host, subject: str) -> None:
        """Remember it, and remove what is too old to count."""
        with contextlib.suppress(OSError):
            make_folder(self._folder)
            for entry in self._folder.iterdir():
                with contextlib.suppress(OSError):
                    if not 0 <= time.time() - entry.lstat().st_mtime < DAY:
                        entry.unlink()
            self._path(host, subject).touch(0o600)

    def forget(self, host: Host) -> None:
        """Forget all validations of a host; raise OSError when one cannot be removed."""
        for path in self._folder.glob(self._path(host, "*").name):
            path.unlink(missing_ok=True)

    def _path(self, host: Host, subject: str) -> Path:
        """Name it by the way to the host, so that no other host can speak for it."""
        way = _digest([host.ssh, host.user, host.port, host.ssh_config, host.via, host.state])
        return self._folder / f"{way}-{subject}"


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
