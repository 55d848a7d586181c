"""Carrying one host's folder to others: the backup that only the chief wrote, before the next attempt.

The folder goes to this machine first and stays here as a safety copy, which serves when the host that
wrote it is lost and no other has a newer one. A folder that a host has already, because it is shared or
unchanged, is not sent.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from orchestrator.errors import HostError
from orchestrator.sync.files import Fetched, alike, fetch, look, look_here, newest_file, our_disk, put, remove
from orchestrator.sync.push import Session

_AT_ONCE = 8  # hosts; the line of this machine is shared by all of them


class Origin(StrEnum):
    """Where the folder that was carried came from."""

    HOST = "host"
    OTHER = "other"  # the host is lost: another one has a newer one than the safety copy, as on a shared disk
    COPY = "copy"  # the host is lost: the safety copy of an earlier carry, which may be older
    NOWHERE = "nowhere"  # nothing was there, or it lived only on a host that is lost


@dataclass(frozen=True)
class Carried:
    origin: Origin
    giver: str  # the host it came from; "" for none
    lost: HostError | None  # why the source host gave nothing, when it should have
    sent: Mapping[str, Fetched]  # host -> what crossed; 0 files: it had the same already
    failed: Mapping[str, HostError]


def carry(
    sessions: Mapping[str, Session],
    source: str,
    remote: Mapping[str, str],
    copy: Path,
    shared: Mapping[str, str] | None = None,
) -> Carried:
    """Bring `remote[source]` (a path on that host) to the path of every other host in `remote`.

    `copy` is where it is kept on this machine. `shared` maps a host to the first host that sees the same
    disk: one of them is sent to. Where the source has nothing any more, what an earlier carry brought to
    the others is taken away. Raise ClusterError when this machine's own disk is the trouble.
    """
    groups = shared or {}
    try:
        if source not in sessions:
            raise HostError(source, "was lost", kind="lost", why="there is no connection")
        fetch(sessions[source], remote[source], copy)
    except HostError as error:
        if error.kind == "missing":
            return _forget(sessions, _others(sessions, source, remote, groups), copy)
        lost = error
    else:
        others = _others(sessions, source, remote, groups)
        return Carried(Origin.HOST, source, None, *_spread(sessions, others, copy))
    origin, giver = Origin.COPY, _newest(sessions, {**remote, source: ""}, copy)
    if giver:
        try:
            fetch(sessions[giver], remote[giver], copy)
        except HostError as error:
            return Carried(Origin.NOWHERE, "", lost, {}, {giver: error})
        origin = Origin.OTHER
    elif not copy.exists():
        return Carried(Origin.NOWHERE, "", lost, {}, {})
    others = _others(sessions, giver or source, remote, groups)
    return Carried(origin, giver, lost, *_spread(sessions, others, copy))


def _newest(sessions: Mapping[str, Session], remote: Mapping[str, str], copy: Path) -> str:
    """The host with something newer than the copy; "" where the copy is the newest.

    Files keep their times on every way, so what an earlier carry brought is as old as the copy.
    """
    times = {"": newest_file(look_here(copy)) if copy.exists() else 0}
    paths = {name: path for name, path in remote.items() if path and name in sessions}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        flying = {name: pool.submit(look, sessions[name], path) for name, path in paths.items()}
        for name, future in flying.items():
            with contextlib.suppress(HostError):  # what it has is not known; sending to it will tell
                times[name] = newest_file(future.result())
    return max(times, key=lambda name: times[name])


def _forget(sessions: Mapping[str, Session], others: Mapping[str, str], copy: Path) -> Carried:
    """The source has removed its folder: others must not go on from what they had of it.

    Only what is exactly the copy is taken away; it stays here under another name.
    """
    failed: dict[str, HostError] = {}
    if copy.exists():
        known = look_here(copy)
        aside = copy.with_name(f"{copy.name}.removed")
        for name, path in others.items():
            try:
                if alike(look(sessions[name], path), known):
                    remove(sessions[name], path)
            except HostError as error:
                failed[name] = error
        with our_disk("write", copy):
            if aside.is_dir():
                shutil.rmtree(aside)
            else:
                aside.unlink(missing_ok=True)
            copy.rename(aside)
    return Carried(Origin.NOWHERE, "", None, {}, failed)


def _others(
    sessions: Mapping[str, Session], source: str, remote: Mapping[str, str], shared: Mapping[str, str]
) -> dict[str, str]:
    """Who is sent to: of those that see the same disk one, and none where the source sees it too."""
    served = {shared.get(source, source)} if source in sessions else set()
    others = {}
    for name, path in remote.items():
        group = shared.get(name, name)
        if name in sessions and name != source and group not in served:
            served.add(group)
            others[name] = path
    return others


def _spread(
    sessions: Mapping[str, Session], paths: Mapping[str, str], copy: Path
) -> tuple[dict[str, Fetched], dict[str, HostError]]:
    sent: dict[str, Fetched] = {}
    failed: dict[str, HostError] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        flying = {name: pool.submit(put, sessions[name], copy, path) for name, path in paths.items()}
        try:
            for name, future in flying.items():
                try:
                    sent[name] = future.result()
                except HostError as error:
                    failed[name] = error
        except BaseException:  # cancelled: what waits for a thread is not begun any more
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sent, failed
