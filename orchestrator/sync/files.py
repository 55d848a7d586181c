"""Folders and files between a host and this machine, whole or not at all; what is there is not sent again.

Both sides list names, sizes and times; what differs crosses as one tar stream (`streams`) into a hidden
sibling, which then takes the name. rsync would save no byte here but parts of a changed file, for a login
shell per host more.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator import wire
from orchestrator.errors import ClusterError, HostError, Trouble
from orchestrator.node.base.fault import NodeError, reason
from orchestrator.node.disk import archive, replace
from orchestrator.node.disk.archive import Entry
from orchestrator.node.disk.below import shortened
from orchestrator.node.disk.removing import remove as discard
from orchestrator.node.disk.tarstream import FILE, FOLDER
from orchestrator.sync.admit import Links, admit, is_unwelcome
from orchestrator.sync.conversation import Conversation
from orchestrator.sync.streams import Told, receive, send

_PATIENCE = 600.0
_REPLACE = 3600.0


@dataclass(frozen=True)
class Fetched:
    files: int  # that crossed; 0: it was the same already
    bytes: int
    seconds: float
    left_out: tuple[str, ...] = ()  # what the host has and we do not take: see `admit`


@dataclass(frozen=True)
class HostListing:
    """What a path on a host is: `root` and names below it; a file is one name in its folder."""

    kind: str  # FOLDER, FILE or "" for nothing
    root: str
    entries: tuple[Entry, ...]
    near: wire.Near | None = None  # where nothing is: the nearest folder and what it holds
    left_out: tuple[str, ...] = ()


def work_folder(workdir: str, run: str, cwd: str = "") -> str:
    """The working folder of a run on a host, or a folder in it: what relative paths mean to its tasks."""
    return "/".join(filter(None, (workdir, "runs", run, "work", cwd)))


def look(session: Conversation, remote: str, links: Links = Links.INSIDE) -> HostListing:
    """What is at a path (`~` is expanded there); raise HostError, also for what no honest host says."""
    reply = session.request(wire.FilesList(path=remote), timeout=_PATIENCE)
    if reply.kind is wire.PathKind.NOTHING:
        return HostListing("", reply.root, (), reply.near)
    admitted = admit(session.host.name, reply.payload, reply.kind, links)
    return HostListing(reply.kind, reply.root, admitted.entries, None, admitted.left_out)


def look_here(local: Path) -> HostListing:
    """As `look`, for this machine; raise ClusterError."""
    real = Path(os.path.realpath(local))
    with our_disk(local, writes=False):
        if real.is_dir():
            # Hosts take no other links than we do.
            found = tuple(one for one in archive.entries(str(real)) if not is_unwelcome(one))
            return HostListing(FOLDER, str(real), found)
        return HostListing(FILE, str(real.parent), (archive.entry(str(real), real.name),))


def alike(one: HostListing, other: HostListing) -> bool:
    """Whether nothing has to cross to make one from the other."""
    return one.kind == other.kind and _Plan(one.entries, _like(other, one)).nothing


def fetch(
    session: Conversation,
    remote: str,
    local: Path,
    told: Told = lambda _: None,
    links: Links = Links.INSIDE,
) -> Fetched:
    """Make `local` what `remote` is; raise HostError (kind "missing" when nothing is there), or
    ClusterError when it cannot be written here. What was at `local` is replaced at the end, or not at all.
    """
    began = time.monotonic()
    there = look(session, remote, links)
    if not there.kind:
        raise missing(session, remote, there)
    local = Path(os.path.realpath(local))
    have = _like(look_here(local), there) if os.path.lexists(local) else {}
    plan = _Plan(there.entries, have)
    if plan.nothing:
        return Fetched(0, 0, time.monotonic() - began, there.left_out)
    with our_disk(local, writes=True), _sibling(local) as incoming:
        gone = receive(session, there.root, plan.send, incoming, told=told, links=links)
        if gone:
            raise HostError(
                session.host.name,
                f"cannot give {remote} as a whole",
                kind="changed",
                why=f"{shortened(gone[0])} vanished or changed while it was read: something writes there",
                hint="try again",
            )
        if there.kind == FILE:
            replace.swap_file(str(incoming), there.entries[0].path, str(local))
        else:
            replace.keep(str(local), str(incoming), plan.keep)
            replace.swap(str(incoming), str(local))
    return Fetched(plan.files, plan.size, time.monotonic() - began, there.left_out)


def put(session: Conversation, local: Path, remote: str, told: Told = lambda _: None) -> Fetched:
    """Make `remote` what `local` is; raise HostError, or ClusterError when it cannot be read here.

    What was at `remote` is replaced at the end, or not at all.
    """
    began = time.monotonic()
    here = look_here(local)
    there = look(session, remote)
    plan = _Plan(here.entries, _like(there, here))
    if plan.nothing:
        return Fetched(0, 0, time.monotonic() - began)
    begun = session.request(wire.FilesBegin(target=remote), timeout=_PATIENCE)
    with our_disk(local, writes=False):
        send(session, here.root, plan.send, begun.incoming, told)
    single = here.entries[0].path if here.kind == FILE else None
    kept = json.dumps(plan.keep).encode()
    swap = wire.FilesSwap(target=begun.target, incoming=begun.incoming, single=single)
    session.request(swap, kept, timeout=_REPLACE)
    return Fetched(plan.files, plan.size, time.monotonic() - began)


def remove(session: Conversation, remote: str) -> None:
    """Take away what is at a path, if anything is; raise HostError."""
    session.request(wire.FilesRemove(target=remote), timeout=_REPLACE)


def missing(session: Conversation, remote: str, there: HostListing) -> HostError:
    """Nothing is at `remote`: the error tells what is near."""
    near = there.near or wire.Near("its disk", (), 0)
    more = f" and {near.more} more" if near.more else ""
    return HostError(
        session.host.name,
        f"has no {remote}",
        kind=Trouble.MISSING,
        why=f"{near.folder} holds {', '.join(near.names) or 'nothing'}{more}",
        hint="look at the path: a relative one is meant in the run's work folder",
    )


class _Plan:
    """What has to cross so that `have` becomes `want`."""

    def __init__(self, want: Sequence[Entry], have: dict[str, Entry]) -> None:
        differ = [one for one in want if not (one.path in have and one.same(have[one.path]))]
        alike = {one.path for one in want} - {one.path for one in differ}
        self.nothing = not differ and set(have) == alike
        self.send = [one for one in want if one.kind == FOLDER or one.path not in alike]
        self.keep = [one.path for one in want if one.kind != FOLDER and one.path in alike]
        self.files = sum(one.kind != FOLDER for one in differ)
        self.size = sum(one.size for one in differ)


def _like(have: HostListing, want: HostListing) -> dict[str, Entry]:
    """The entries of one, by the names that the other gives them; nothing where the kinds differ."""
    if have.kind != want.kind:
        return {}
    if have.kind == FILE:
        name = want.entries[0].path
        return {name: have.entries[0]._replace(path=name)}
    return {one.path: one for one in have.entries}


@contextmanager
def _sibling(local: Path) -> Iterator[Path]:
    incoming = replace.beside(str(local))
    try:
        yield Path(incoming)
    finally:
        discard(incoming)


@contextmanager
def our_disk(local: Path, *, writes: bool) -> Iterator[None]:
    """An error of this machine's disk is one of ours, not of a host's."""
    try:
        yield
    except NodeError as error:  # of code that hosts run too
        raise ClusterError(f"this machine {error.what}", why=error.why, hint=error.hint) from error
    except OSError as error:
        raise ClusterError(
            f"cannot {'write' if writes else 'read'} {error.filename or local}",
            why=reason(error),
            hint="make room here, or look at who may write" if writes else "",
        ) from error
