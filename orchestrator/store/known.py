"""The runs that this machine knows: where they are kept, what a new one is called, and which one is meant."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.errors import OrchestrateError, UsageError
from orchestrator.names import NotANameError, RunId
from orchestrator.node.base.fault import reason
from orchestrator.store.folder import RunFolder

_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"  # none that look alike; in the order in which they sort
_NAMED = 8  # runs, the newest, when a word means too many


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
    """The run that an id, its start, its last part or its --name means; None for the newest.

    Return None when there is no such run here; raise UsageError when several match.
    """
    found = list(runs(root))
    if wanted is None:
        return found[0] if found else None
    matches = [folder for folder in found if matches_run(folder.run, wanted)]
    if len(matches) != 1:  # `--name 2026` is a name, though many ids begin like that
        matches = named(wanted, root)[:1] or matches
    if len(matches) > 1:
        raise ambiguous(wanted, [folder.run for folder in matches])
    return matches[0] if matches else None


def named(name: str, root: Path | None = None) -> list[RunFolder]:
    """The runs of a --name, the newest first."""
    return [folder for folder in runs(root) if _name(folder) == name]


def ambiguous(wanted: str, runs: Sequence[str]) -> UsageError:
    more = len(runs) - _NAMED
    return UsageError(
        f"{len(runs)} runs match {wanted!r}",
        why=", ".join(sorted(runs, reverse=True)[:_NAMED]) + (f" and {more} more" if more > 0 else ""),
        hint="write more of the id, or only its last part",
    )


def matches_run(run: str, wanted: str) -> bool:
    return run.startswith(wanted) or run.rsplit("-", 1)[-1] == wanted


def _name(folder: RunFolder) -> str:
    try:
        return folder.read_plan().name
    except OrchestrateError:
        return ""
