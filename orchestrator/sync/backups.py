"""Copying one host's folder to others: the backup that only the chief wrote, before the next attempt.

The folder is copied to this machine first and stays here as a safety copy, which is used if the host that
wrote it is lost and no other host shares its disk. A host that already has the folder, because it is shared
or unchanged, is skipped.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path

from orchestrator import wire
from orchestrator.errors import HostError, HostErrors, Trouble
from orchestrator.node.disk.removing import remove as discard
from orchestrator.sync.contents import read_folder
from orchestrator.sync.conversation import Conversation
from orchestrator.sync.files import fetch, our_disk
from orchestrator.sync.sending import Delivery, push
from orchestrator.value import Value

_AT_ONCE = 8  # hosts at a time; they share this machine's uplink
_PATIENCE = 3600.0  # seconds for removing a folder


class BackupOrigin(StrEnum):
    """The source of the folder that was copied."""

    HOST = "host"
    COPY = "copy"  # the host is lost: the safety copy of an earlier transfer, which may be older
    REMOVED = "removed"  # the host had one, and has removed it
    NOWHERE = "nowhere"  # there was none, or only on a host that is lost


class Carried(Value):
    origin: BackupOrigin
    giver: str  # the host it came from: the source, or one that shares its disk; "" for none
    sent: Mapping[str, Delivery]  # host -> what was transferred, or that it was unchanged
    failed: Mapping[str, HostError]
    left_out: tuple[str, ...] = ()  # existing only in the source's folder: see `admit`


def carry(
    sessions: Mapping[str, Conversation],
    source: str,
    remote: Mapping[str, str],
    copy: Path,
    shared: Mapping[str, str] | None = None,
    *,
    going_on: Collection[str],
) -> Carried:
    """Copy `remote[source]` (a path on that host) to the path of every other host in `remote`.

    `copy` is its place on this machine. `shared` maps a host, including a lost source, to the first host
    with the same disk: one of them receives it. The state of a host that is `going_on` is authoritative: if
    it cannot send its folder, it is among the failed ones and nothing changes anywhere; if it no longer has
    one, what an earlier call copied to the others is removed. Raise ClusterError if this machine's own disk
    fails.
    """
    groups = shared or {}
    giver, mates = source, groups.get(source)
    if source not in sessions:  # a host that shares its disk
        giver = next((name for name in remote if name in sessions and groups.get(name, name) == mates), "")
    left_out: tuple[str, ...] = ()
    try:
        if giver:
            left_out = fetch(sessions[giver], remote[giver], copy)
    except HostError as error:
        if giver in going_on and error.kind == Trouble.MISSING:
            return _forget(sessions, _others(sessions, giver, remote, groups), copy)
        if giver in going_on:
            return Carried(BackupOrigin.NOWHERE, "", {}, {giver: error})
        giver = ""
    if not giver and not copy.exists():
        return Carried(BackupOrigin.NOWHERE, "", {}, {})
    paths, contents = _others(sessions, giver or source, remote, groups), read_folder(copy)
    sent: dict[str, Delivery] = {}
    failed: HostErrors = {}

    def spread(name: str) -> None:
        try:
            sent[name] = push(sessions[name], contents, paths[name], mutable=True)
        except HostError as error:
            failed[name] = error

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(spread, paths))
    return Carried(BackupOrigin.HOST if giver else BackupOrigin.COPY, giver, sent, failed, left_out)


def _forget(sessions: Mapping[str, Conversation], others: Mapping[str, str], copy: Path) -> Carried:
    """The source has removed its folder: the others must not continue from their copies of it.

    Only folders that equal the copy are removed; it stays here under another name.
    """
    if not copy.exists():
        return Carried(BackupOrigin.NOWHERE, "", {}, {})
    failed: HostErrors = {}
    contents = read_folder(copy)
    for name, path in others.items():
        try:
            drop = wire.StoreDrop(path=path, remove=True)
            sessions[name].request(drop, contents.encoded, timeout=_PATIENCE)
        except HostError as error:
            failed[name] = error
    if not failed:  # otherwise it is requested again, and has to be known then
        aside = copy.with_name(f"{copy.name}.removed")
        with our_disk(copy):
            discard(str(aside))
            copy.rename(aside)
    return Carried(BackupOrigin.REMOVED, "", {}, failed)


def _others(
    sessions: Mapping[str, Conversation], source: str, remote: Mapping[str, str], shared: Mapping[str, str]
) -> dict[str, str]:
    """Return the hosts to send to: one per shared disk, and none that shares the source's."""
    served = {shared.get(source, source)} if source in sessions else set()
    others = {}
    for name, path in remote.items():
        group = shared.get(name, name)
        if name in sessions and name != source and group not in served:
            served.add(group)
            others[name] = path
    return others
