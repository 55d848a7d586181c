"""Runs that this machine knows, by their names, and what else it keeps from one command to the next."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.model import Host, TaskSpec
from orchestrator.names import NotANameError, RunId
from orchestrator.node.base.fault import reason
from orchestrator.plainfile import make_folder, read_plain, write_atomically
from orchestrator.store.folder import RunFolder
from orchestrator.store.standing import in_question
from orchestrator.text import some

_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"  # none that look alike; in the order in which they sort
_MOST_LOCK = 16 << 20  # bytes of the lock of an environment
_NAMED = 8  # runs, the newest, when a word means too many
DAY = 86_400.0  # seconds that a validation counts


def runs_root() -> Path:
    """Where runs live: $XDG_STATE_HOME/orchestrate/runs (XDG base directory specification)."""
    return state_root() / "runs"


def state_root() -> Path:
    """The folder of what this machine keeps from one command to the next."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = state if state.is_absolute() else Path.home() / ".local" / "state"
    return base / "orchestrate"


def new_run_id(now: float) -> RunId:
    """`20261121-0102-k7pq`: sorts by age, the last part alone names it."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    fraction = divmod(int(now % 1 * len(_LETTERS) ** 2), len(_LETTERS))  # of the second: to the millisecond
    time_of = "".join(_LETTERS[number] for number in fraction)
    return RunId(f"{stamp}-{time_of}{''.join(secrets.choice(_LETTERS) for _ in range(2))}")


def runs(root: Path | None = None) -> Iterator[RunFolder]:
    """Every run of this machine, the newest first, damaged ones too.

    Raise UsageError when they cannot be listed.
    """
    yield from sorted(run_folders(root or runs_root()), key=lambda folder: folder.run, reverse=True)


def run_folders(base: Path) -> list[RunFolder]:
    """The folders of runs below a root, whole or not; raise UsageError when that cannot be read."""
    try:
        entries = [entry.name for entry in base.iterdir() if entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(
            f"cannot read {base}, where this machine keeps its runs",
            why=reason(error),
            hint="make it a folder of yours, or set XDG_STATE_HOME to another one",
        ) from error
    found = []
    for name in entries:
        with contextlib.suppress(NotANameError):  # a folder of somebody's own
            found.append(RunFolder(base, RunId(name)))
    return found


def find(wanted: str | None, root: Path | None = None) -> RunFolder | None:
    """Return the run of an id, its start, its last part, or a --name; without one the newest run.

    A launch that was refused is the newest only where no run has started tasks: it must not hide the run
    that trains. Return None when there is no such run here; raise UsageError when several match.
    """
    found = list(runs(root))
    if wanted is not None:
        matches = [folder for folder in found if matches_run(folder.run, wanted)]
        found = matches if len(matches) == 1 else named(wanted, root)
        if not found and matches:  # `--name 2026` is a name, though many ids begin like that
            raise ambiguous(wanted, [folder.run for folder in matches])
    return next(filter(in_question, found), found[0] if found else None)


def named(name: str, root: Path | None = None) -> list[RunFolder]:
    """The runs of a --name, the newest first."""
    found = []
    for folder in runs(root):
        with contextlib.suppress(OrchestrateError):  # one that cannot be read has no name
            if folder.read_plan().name == name:
                found.append(folder)
    return found


def ambiguous(wanted: str, runs: Sequence[str]) -> UsageError:
    return UsageError(
        f"{len(runs)} runs match {wanted!r}",
        why=some(sorted(runs, reverse=True), _NAMED),
        hint="write more of the id, or only its last part",
    )


def matches_run(run: str, wanted: str) -> bool:
    return run.startswith(wanted) or run.rsplit("-", 1)[-1] == wanted


def read_lock(name: str) -> str | None:
    """Read the lock of an environment that this machine has resolved; None where there is none."""
    try:
        return read_plain(_lock_path(name), _MOST_LOCK).decode()
    except (OSError, ValueError):
        return None


def write_lock(name: str, text: str) -> None:
    """Keep the lock of an environment; raise UsageError when it cannot be written."""
    path = _lock_path(name)
    try:
        make_folder(path.parent)
        write_atomically(path, text.encode())
    except OSError as error:
        raise UsageError(
            f"cannot keep the lock of the environment in {path.parent}",
            why=reason(error),
            hint="set XDG_STATE_HOME to a folder of yours on a disk with space",
        ) from error


def _lock_path(name: str) -> Path:
    return state_root() / "locks" / f"{name}.txt"


# --- validated hosts ---


def subject(spec: TaskSpec, tree: str, state: str) -> str:
    """Digest what is validated: program, options, environment and host.

    `tree` is the digest of the program, `state` the host's own.
    """
    return _digest([spec.argv, sorted(spec.env.items()), spec.setup, tree, state])


class Validations(Struct, frozen=True):
    """Hosts that were validated: an empty file for each host and subject; other commands may use it, too.

    It is a convenience: what cannot be read is not remembered, and a full disk forgets.
    """

    folder: Path

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
            make_folder(self.folder)
            for entry in self.folder.iterdir():
                with contextlib.suppress(OSError):
                    if not 0 <= time.time() - entry.lstat().st_mtime < DAY:
                        entry.unlink()
            self._path(host, subject).touch(0o600)

    def forget(self, host: Host) -> None:
        """Forget all validations of a host; raise OSError when one cannot be removed."""
        for path in self.folder.glob(self._path(host, "*").name):
            path.unlink(missing_ok=True)

    def _path(self, host: Host, subject: str) -> Path:
        """Name it by the way to the host, so that no other host can speak for it."""
        way = _digest([host.ssh, host.user, host.port, host.ssh_config, host.via, host.state])
        return self.folder / f"{way}-{subject}"


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
