"""Folders and files between a host and this machine, whole or not at all; what is there is not sent again.

Both sides list names, sizes and times; what differs crosses as one tar stream (`streams`) into a hidden
sibling, which then takes the name. rsync would save no byte here but parts of a changed file, for a login
shell per host more.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ClusterError, HostError
from orchestrator.node import archive, replace
from orchestrator.node.archive import Entry
from orchestrator.sync.push import Session
from orchestrator.sync.streams import Told, receive, send

_PATIENCE = 600.0
_REPLACE = 3600.0


@dataclass(frozen=True)
class Fetched:
    files: int  # that crossed; 0: it was the same already
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Listing:
    """What a path on a host is: `root` and names below it; a file is one name in its folder."""

    kind: str  # archive.FOLDER, archive.FILE or "" for nothing
    root: str
    entries: tuple[Entry, ...]
    near: dict[str, Any]  # where nothing is: the nearest folder and what it holds


def work_folder(workdir: str, run: str) -> str:
    """Where the tasks of a run work on a host; what relative paths mean there."""
    return f"{workdir}/runs/{run}/work"


def look(session: Session, remote: str) -> Listing:
    """What is at a path (`~` is expanded there); raise HostError."""
    reply = session.request("files_list", timeout=_PATIENCE, path=remote)
    found = tuple(Entry(*row) for row in json.loads(reply.payload))
    result = reply.result
    return Listing(result["kind"], result["root"], found, result.get("near", {}))


def look_here(local: Path) -> Listing:
    """As `look`, for this machine; raise ClusterError."""
    real = Path(os.path.realpath(local))
    with our_disk("read", local):
        if real.is_dir():
            return Listing(archive.FOLDER, str(real), tuple(archive.entries(str(real))), {})
        return Listing(archive.FILE, str(real.parent), (archive.entry(str(real), real.name),), {})


def alike(one: Listing, other: Listing) -> bool:
    """Whether nothing has to cross to make one from the other."""
    return one.kind == other.kind and _Plan(one.entries, _like(other, one)).nothing


def fetch(session: Session, remote: str, local: Path, told: Told = lambda _: None) -> Fetched:
    """Make `local` what `remote` is; raise HostError (kind "missing" when nothing is there), or
    ClusterError when it cannot be written here. What was at `local` is replaced at the end, or not at all.
    """
    began = time.monotonic()
    there = look(session, remote)
    if not there.kind:
        raise missing(session, remote, there)
    local = Path(os.path.realpath(local))
    have = _at(local, there)
    plan = _Plan(there.entries, have)
    if plan.nothing:
        return Fetched(0, 0, time.monotonic() - began)
    with our_disk("write", local), _sibling(local) as incoming:
        gone = receive(session, there.root, plan.send, incoming, size=plan.size, told=told)
        if gone:
            raise HostError(
                session.host.name,
                f"cannot give {remote} as a whole",
                kind="changed",
                why=f"{gone[0]} vanished while it was read: something writes there",
                hint="try again",
            )
        if there.kind == archive.FILE:
            (incoming / there.entries[0].path).replace(local)
        else:
            replace.keep(str(local), str(incoming), plan.keep)
            replace.swap(str(incoming), str(local))
    return Fetched(plan.files, plan.size, time.monotonic() - began)


def put(session: Session, local: Path, remote: str, told: Told = lambda _: None) -> Fetched:
    """Make `remote` what `local` is; raise HostError, or ClusterError when it cannot be read here.

    What was at `remote` is replaced at the end, or not at all.
    """
    began = time.monotonic()
    here = look_here(local)
    there = look(session, remote)
    plan = _Plan(here.entries, _like(there, here))
    if plan.nothing:
        return Fetched(0, 0, time.monotonic() - began)
    begun = session.request("files_begin", timeout=_PATIENCE, target=remote).result
    with our_disk("read", local):
        send(session, here.root, plan.send, begun["incoming"], told)
    single = here.entries[0].path if here.kind == archive.FILE else None
    kept = json.dumps(plan.keep).encode()
    session.request("files_swap", kept, timeout=_REPLACE, single=single, **begun)
    return Fetched(plan.files, plan.size, time.monotonic() - began)


def remove(session: Session, remote: str) -> None:
    """Take away what is at a path, if anything is; raise HostError."""
    session.request("files_remove", timeout=_REPLACE, target=remote)


def missing(session: Session, remote: str, there: Listing) -> HostError:
    """Nothing is at `remote`: the error tells what is near."""
    near = there.near
    more = f" and {near['more']} more" if near["more"] else ""
    return HostError(
        session.host.name,
        f"has no {remote}",
        kind="missing",
        why=f"{near['folder']} holds {', '.join(near['names']) or 'nothing'}{more}",
        hint="look at the path: a relative one is meant in the run's work folder",
    )


class _Plan:
    """What has to cross so that `have` becomes `want`."""

    def __init__(self, want: Sequence[Entry], have: dict[str, Entry]) -> None:
        differ = [one for one in want if not (one.path in have and one.same(have[one.path]))]
        alike = {one.path for one in want} - {one.path for one in differ}
        self.nothing = not differ and set(have) == alike
        self.send = [one.path for one in want if one.kind == archive.FOLDER or one.path not in alike]
        self.keep = [one.path for one in want if one.kind != archive.FOLDER and one.path in alike]
        self.files = sum(one.kind != archive.FOLDER for one in differ)
        self.size = sum(one.size for one in differ)


def _at(local: Path, there: Listing) -> dict[str, Entry]:
    """What is at `local` already, listed as `there` is; raise ClusterError."""
    return _like(look_here(local), there) if os.path.lexists(local) else {}


def _like(have: Listing, want: Listing) -> dict[str, Entry]:
    """The entries of one, by the names that the other gives them; nothing where the kinds differ."""
    if have.kind != want.kind:
        return {}
    if have.kind == archive.FILE:
        name = want.entries[0].path
        return {name: have.entries[0]._replace(path=name)}
    return {one.path: one for one in have.entries}


@contextmanager
def _sibling(local: Path) -> Iterator[Path]:
    incoming = replace.beside(str(local))
    try:
        yield Path(incoming)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


@contextmanager
def our_disk(verb: str, local: Path) -> Iterator[None]:
    """An error of this machine's disk is one of ours, not of a host's."""
    try:
        yield
    except OSError as error:
        raise ClusterError(
            f"cannot {verb} {error.filename or local}",
            why=error.strerror or str(error),
            hint="make room here, or look at who may write" if verb == "write" else "",
        ) from error
