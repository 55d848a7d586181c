"""Runs that are recorded on this machine, and its other state between commands."""

import calendar
import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchestrateError, UsageError, unless_refused
from orchestrator.model import Host, TaskSpec
from orchestrator.names import NotANameError, RunId
from orchestrator.plainfile import make_folder, read_plain, write_atomically, xdg
from orchestrator.store.folder import RunFolder
from orchestrator.store.standing import in_question
from orchestrator.text import some
from orchestrator.value import Value

_STAMP = "%Y%m%d-%H%M%S"
_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"  # without similar ones; in ascending order
_MOST_LOCK = 16 << 20  # bytes of the lock of an environment
_NAMED = 8  # the newest runs, listed when a name is ambiguous
DAY = 86_400.0  # seconds that a validation remains valid


def runs_root() -> Path:
    """Return the folder of runs: $XDG_STATE_HOME/orchestrate/runs."""
    return state_root() / "runs"


def state_root() -> Path:
    """Return the folder of what this machine keeps between commands."""
    return xdg("STATE", ".local/state")


def new_run_id(now: float) -> RunId:
    """Return `20261121-0102-k7pq`: sorts by age; the last part alone identifies it.

    In UTC: local time would hide the newest run after a journey west, or when summer time ends.
    """
    stamp = time.strftime(_STAMP, time.gmtime(now))
    fraction = divmod(int(now % 1 * len(_LETTERS) ** 2), len(_LETTERS))  # milliseconds of the second
    time_of = "".join(_LETTERS[number] for number in fraction)
    return RunId(f"{stamp}-{time_of}{''.join(secrets.choice(_LETTERS) for _ in range(2))}")


def next_run_id(now: float) -> RunId:
    """Return the ID of a new run of this machine: it sorts last, even after its clock was set back."""
    last = next((folder.run for folder in runs()), "")
    made = new_run_id(now)
    with contextlib.suppress(ValueError):  # an id in another form, as another machine's run may have
        return made if made > last else new_run_id(calendar.timegm(time.strptime(last[:15], _STAMP)) + 1)
    return made


def runs() -> list[RunFolder]:
    """Return every run of this machine, the newest first, including damaged ones.

    Raise UsageError if they cannot be listed.
    """
    base, entries, folders = runs_root(), list[str](), list[RunFolder]()
    hint = "make it a folder of yours, or set XDG_STATE_HOME to another one"
    what = f"cannot read {base}, where this machine keeps its runs"
    with unless_refused(what, hint), contextlib.suppress(FileNotFoundError):
        entries = [entry.name for entry in base.iterdir() if entry.is_dir()]
    for name in entries:
        with contextlib.suppress(NotANameError):  # a folder of the user's
            folders.append(RunFolder(base, RunId(name)))
    return sorted(folders, key=lambda folder: folder.run, reverse=True)


def find(query: str | None) -> RunFolder | None:
    """Return the run with an id, its start, its last part, or a --name; without one the newest run.

    A refused launch is the newest only if no run has started tasks: it must not hide the run that trains.
    Return None if this machine has no such run; raise UsageError if several match.
    """
    folders = runs()
    if query is not None:
        matches = [folder for folder in folders if matches_run(folder.run, query)]
        folders = matches if len(matches) == 1 else named(query)
        if not folders and matches:  # `--name 2026` is a name, although many ids begin like that
            raise ambiguous(query, [folder.run for folder in matches])
    return next(filter(in_question, folders), folders[0] if folders else None)


def named(name: str, match: Callable[[str, str], bool] = str.__eq__) -> list[RunFolder]:
    """Return the runs with a --name, the newest first."""
    matches = []
    for folder in runs():
        with contextlib.suppress(OrchestrateError):  # an unreadable one has no name
            if match(folder.read_plan().name, name):
                matches.append(folder)
    return matches


def known_names() -> Iterator[str]:
    """The names, ids and last parts of ids of the runs of this machine."""
    for folder in runs():
        yield from (folder.run, folder.run.rsplit("-", 1)[-1])
        with contextlib.suppress(OrchestrateError):
            yield folder.read_plan().name


def ambiguous(query: str, runs: Sequence[str]) -> UsageError:
    return UsageError(
        f"{len(runs)} runs match {query!r}",
        why=some(sorted(runs, reverse=True), _NAMED),
        hint="write more of the id, or only its last part",
    )


def matches_run(run: str, query: str) -> bool:
    return run.startswith(query) or run.rsplit("-", 1)[-1] == query


def read_lock(name: str) -> str | None:
    """Read the lock of an environment that this machine has resolved; return None if there is none."""
    try:
        return read_plain(_lock_path(name), _MOST_LOCK).decode()
    except (OSError, ValueError):
        return None


def write_lock(name: str, text: str) -> None:
    """Store the lock of an environment; raise UsageError if it cannot be written."""
    path = _lock_path(name)
    hint = "set XDG_STATE_HOME to a folder of yours on a disk with space"
    with unless_refused(f"cannot keep the lock of the environment in {path.parent}", hint):
        make_folder(path.parent)
        write_atomically(path, text.encode())


def _lock_path(name: str) -> Path:
    return state_root() / "locks" / f"{name}.txt"


# --- validated hosts ---


def subject(spec: TaskSpec, tree: str, state: str) -> str:
    """Return a digest of what is validated: program, options, environment and host.

    `tree` is the digest of the program, `state` that of the host.
    """
    return _digest([spec.argv, sorted(spec.env.items()), spec.setup, tree, state])


class Validations(Value):
    """Validated hosts: an empty file per host and subject; several commands may use it at once.

    It is only a convenience: unreadable entries do not count, and a full disk stores none.
    """

    folder: Path

    def age(self, host: Host, subject: str) -> float | None:
        """Return how many seconds ago this was validated on a host; None: not within a day."""
        try:
            age = time.time() - self._path(host, subject).lstat().st_mtime
        except OSError:
            return None
        return age if 0 <= age < DAY else None  # a clock may have been set back

    def any_of(self, host: Host) -> bool:
        """Return True if something was validated on a host."""
        return any(self.folder.glob(self._path(host, "*").name))

    def write(self, host: Host, subject: str) -> None:
        """Store it, and remove entries that are too old to count."""
        with contextlib.suppress(OSError):
            make_folder(self.folder)
            for entry in self.folder.iterdir():
                with contextlib.suppress(OSError):
                    if not 0 <= time.time() - entry.lstat().st_mtime < DAY:
                        entry.unlink()
            self._path(host, subject).touch(0o600)

    def forget(self, host: Host) -> None:
        """Remove all validations of a host; raise OSError if that fails."""
        for path in self.folder.glob(self._path(host, "*").name):
            path.unlink(missing_ok=True)

    def _path(self, host: Host, subject: str) -> Path:
        """Return its path, which depends on the way to the host: no other host is mistaken for it."""
        way = _digest([host.ssh, host.user, host.port, host.ssh_config, host.via, host.state])
        return self.folder / f"{way}-{subject}"


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
