"""Carrying one host's folder to others: the backup that only the chief wrote, before the next attempt.

The folder goes to this machine first and stays here as a safety copy, which serves when the host that
wrote it is lost and no other sees its disk. A folder that a host has already, because it is shared or
unchanged, is not sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from orchestrator import wire
from orchestrator.errors import HostError, Trouble
from orchestrator.node.disk.removing import remove as discard
from orchestrator.sync.contents import read_folder
from orchestrator.sync.conversation import Conversation
from orchestrator.sync.files import fetch, our_disk
from orchestrator.sync.sending import Delivery, push

_AT_ONCE = 8  # hosts; the line of this machine is shared by all of them
_PATIENCE = 3600.0  # seconds for a folder to be removed


class BackupOrigin(StrEnum):
    """Where the folder that was carried came from."""

    HOST = "host"
    COPY = "copy"  # the host is lost: the safety copy of an earlier carry, which may be older
    REMOVED = "removed"  # the host had one, and has removed it
    NOWHERE = "nowhere"  # nothing was there, or it lived only on a host that is lost


class Carried(Struct, frozen=True):
    origin: BackupOrigin
    giver: str  # the host it came from: the source, or one that sees its disk; "" for none
    sent: Mapping[str, Delivery]  # host -> what crossed, or that it had the same already
    failed: Mapping[str, HostError]
    left_out: tuple[str, ...] = ()  # of the giver's folder, and nowhere else now: see `admit`


def carry(
    sessions: Mapping[str, Conversation],
    source: str,
    remote: Mapping[str, str],
    copy: Path,
    shared: Mapping[str, str] | None = None,
    *,
    going_on: Collection[str],
) -> Carried:
    """Bring `remote[source]` (a path on that host) to the path of every other host in `remote`.

    `copy` is where it is kept on this machine. `shared` maps a host, the source too when it is lost, to the
    first host that sees the same disk: one of them is sent to. What a host that is `going_on` has is the
    truth: where it cannot give it, it is among the failed ones and nothing is changed anywhere, and where it
    has nothing any more, what an earlier carry brought to the others is taken away.
    Raise ClusterError when this machine's own disk is the trouble.
    """
    groups = shared or {}
    giver, mates = source, groups.get(source)
    if source not in sessions:  # a host that sees its disk
        giver = next((name for name in remote if name in sessions and groups.get(name, name) == mates), "")
    left_out: tuple[str, ...] = ()
    try:
        if giver:
            left_out = fetch(sessions[giver], remote[giver], copy).left_out
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
    failed: dict[str, HostError] = {}

    def spread(name: str) -> None:
        try:
            sent[name] = push(sessions[name], contents, paths[name], mutable=True)
        except HostError as error:
            failed[name] = error

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(spread, paths))
    return Carried(BackupOrigin.HOST if giver else BackupOrigin.COPY, giver, sent, failed, left_out)


def _forget(sessions: Mapping[str, Conversation], others: Mapping[str, str], copy: Path) -> Carried:
    """The source has removed its folder: others must not go on from what they had of it.

    Only what is exactly the copy is taken away; it stays here under another name.
    """
    if not copy.exists():
        return Carried(BackupOrigin.NOWHERE, "", {}, {})
    failed: dict[str, HostError] = {}
    contents = read_folder(copy)
    for name, path in others.items():
        try:
            drop = wire.StoreDrop(path=path, remove=True)
            sessions[name].request(drop, contents.encoded, timeout=_PATIENCE)
        except HostError as error:
            failed[name] = error
    if not failed:  # else it is asked for again, and has to be known then
        aside = copy.with_name(f"{copy.name}.removed")
        with our_disk(copy):
            discard(str(aside))
            copy.rename(aside)
    return Carried(BackupOrigin.REMOVED, "", {}, failed)


def _others(
    sessions: Mapping[str, Conversation], source: str, remote: Mapping[str, str], shared: Mapping[str, str]
) -> dict[str, str]:
    """Return who is sent to: of those that see the same disk one, and none where the source sees it too."""
    served = {shared.get(source, source)} if source in sessions else set()
    others = {}
    for name, path in remote.items():
        group = shared.get(name, name)
        if name in sessions and name != source and group not in served:
            served.add(group)
            others[name] = path
    return others
