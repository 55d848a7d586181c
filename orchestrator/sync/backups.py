"""Carrying one host's folder to others: the backup that only the chief wrote, before the next attempt.

The folder goes to this machine first and stays here as a safety copy, which serves when the host that
wrote it is lost. A folder that a host has already, because it is shared or unchanged, is not sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from orchestrator.errors import HostError
from orchestrator.sync.files import Fetched, fetch, put
from orchestrator.sync.push import Session

_AT_ONCE = 8  # hosts; the line of this machine is shared by all of them


class Origin(StrEnum):
    """Where the folder that was carried came from."""

    HOST = "host"
    COPY = "copy"  # the host is lost: the safety copy of an earlier carry, which may be older
    NOWHERE = "nowhere"  # nothing was there, or it lived only on a host that is lost


@dataclass(frozen=True)
class Carried:
    origin: Origin
    fetched: Fetched | None  # from the source host, when it answered
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
    disk: one of them is sent to. Raise ClusterError when this machine's own disk is the trouble.
    """
    fetched: Fetched | None = None
    lost: HostError | None = None
    try:
        if source not in sessions:
            raise HostError(source, "was lost", kind="lost", why="there is no connection")
        fetched = fetch(sessions[source], remote[source], copy)
    except HostError as error:
        if error.kind == "missing":  # an older copy would bring back what it has removed
            return Carried(Origin.NOWHERE, None, None, {}, {})
        lost = error
    if lost is not None and not copy.exists():
        return Carried(Origin.NOWHERE, None, lost, {}, {})
    others = _others(sessions, source, remote, shared or {})
    origin = Origin.HOST if lost is None else Origin.COPY
    return Carried(origin, fetched, lost, *_spread(sessions, others, copy))


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
