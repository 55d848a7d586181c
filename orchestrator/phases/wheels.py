"""uv for all hosts, and wheels for those that reach no index, brought as data is.

Each piece leaves this machine once: the hosts give them to each other, so that the line of this machine does
not carry every package to every host; what an interrupted transfer has brought is not sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import ClusterError, HostError
from orchestrator.events import DataStepped, EnvironmentStepped, Event
from orchestrator.fleet import Answers, Fleet
from orchestrator.model import Host
from orchestrator.phases.data import bring, data_cache
from orchestrator.phases.transfer import Wish
from orchestrator.sync import Dataset, Source, read_dataset

FOLDER = "wheels"  # in the folder of data on a host
UV = "tools/uv"  # in another one, which stays


def bring_wheels(
    fleet: Fleet, hosts: Sequence[Host], fetch: Callable[[], Path], emit: Callable[[Event], None]
) -> tuple[dict[str, str], dict[str, HostError]]:
    """Have the wheels that `fetch` gets on all of the hosts; the folder of data on each, and what failed."""

    def sources() -> list[Source]:
        return [Source(f"{FOLDER}/{path.name}", path) for path in sorted(fetch().glob("*.whl"))]

    return _bring(fleet, hosts, sources, "receives packages", emit)


def bring_uv(
    fleet: Fleet, hosts: Sequence[Host], binary: Path, emit: Callable[[Event], None]
) -> tuple[dict[str, str], dict[str, HostError]]:
    """Have the program on all of the hosts; its path on each, and what failed."""
    source = Source(UV, binary, executable=True)
    places, bad = _bring(fleet, hosts, lambda: [source], "receives uv", emit)
    return {name: f"{folder}/{UV}" for name, folder in places.items()}, bad


def _bring(
    fleet: Fleet,
    hosts: Sequence[Host],
    sources: Callable[[], list[Source]],
    words: str,
    emit: Callable[[Event], None],
) -> tuple[dict[str, str], dict[str, HostError]]:
    def read(_: str) -> Dataset:
        try:
            return read_dataset(sources(), data_cache() / "digests")
        except ClusterError as error:
            raise HostError("", error.what, kind="env", why=error.why, hint=error.hint) from error

    # From the pool, since a download takes long and may be cancelled.
    answers: Answers[Any] = fleet.each([FOLDER], str, read)
    for error in answers.bad.values():
        return {}, {
            host.name: HostError(host.name, error.what, kind=error.kind, why=error.why, hint=error.hint)
            for host in hosts
        }

    def step(event: Event) -> None:
        if isinstance(event, DataStepped) and event.host:
            emit(EnvironmentStepped(event.host, words, event.done, event.total))

    return bring(fleet, hosts, answers.good[FOLDER], step, Wish(run="setup"))
