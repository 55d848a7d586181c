"""uv for all hosts, and wheels for those that reach no index, brought as data is.

Each piece leaves this machine once: the hosts give them to each other, so that the line of this machine does
not carry every package to every host; what an interrupted transfer has brought is not sent again. What any
connected host still has from an earlier time comes from there, and only the rest from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.errors import ClusterError, HostError
from orchestrator.events import DataStepped, EnvironmentStepped, Event
from orchestrator.fleet import Fleet
from orchestrator.model import Host
from orchestrator.phases.context import Emit
from orchestrator.phases.data import bring, data_cache, look
from orchestrator.phases.transfer import TransferOptions
from orchestrator.sync import Contents, DataPath, read_data

FOLDER = "wheels"  # in the folder of data on a host
UV = "tools/uv"  # in another one, which stays
_GLANCE = 60.0  # seconds for hosts that may help; without them it goes from here


Placed = tuple[dict[str, str], dict[str, HostError]]  # the folder of data on each host, and what failed


def bring_wheels(fleet: Fleet, hosts: Sequence[Host], fetch: Callable[[], Path], emit: Emit) -> Placed:
    """Have the wheels that `fetch` gets on all of the hosts."""

    def sources() -> list[DataPath]:
        return [DataPath(f"{FOLDER}/{path.name}", path) for path in sorted(fetch().glob("*.whl"))]

    return _bring(fleet, hosts, sources, "send", emit)


def bring_uv(fleet: Fleet, hosts: Sequence[Host], binary: Path, emit: Emit) -> Placed:
    """Have the program on all of the hosts; its path on each, and what failed."""
    source = DataPath(UV, binary, executable=True)
    places, bad = _bring(fleet, hosts, lambda: [source], "send uv", emit)
    return {name: f"{folder}/{UV}" for name, folder in places.items()}, bad


def _bring(
    fleet: Fleet,
    hosts: Sequence[Host],
    sources: Callable[[], list[DataPath]],
    words: str,
    emit: Emit,
) -> Placed:
    def read() -> Contents:
        try:
            return read_data(sources(), data_cache() / "digests")
        except ClusterError as error:
            raise HostError("", error.what, kind="env", why=error.why, hint=error.hint) from error

    try:
        dataset = fleet.in_pool(read)  # with a download
    except HostError as error:
        bad = {
            host.name: HostError(host.name, error.what, kind=error.kind, why=error.why, hint=error.hint)
            for host in hosts
        }
        return {}, bad

    def step(event: Event) -> None:
        if isinstance(event, DataStepped) and event.host:
            emit(EnvironmentStepped(event.host, words, event.done, event.total))

    others = [session.host for session in fleet.sessions.values() if session.host not in hosts]
    looked = look(fleet, others, dataset.digest, thorough=False, seconds=_GLANCE)
    helpers = [host for host in others if looked.has(host.name)]
    return bring(fleet, hosts, dataset, step, TransferOptions(run="setup"), helpers=helpers)
