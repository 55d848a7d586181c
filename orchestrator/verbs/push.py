"""`push`: bring the data of [data], or a folder or file, to every host that lacks it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.config.mistakes import Wrong
from orchestrator.config.values import data_paths
from orchestrator.errors import HostError, UsageError
from orchestrator.model import Data, Inventory
from orchestrator.phases.context import Emit
from orchestrator.phases.data import bring, read_sources, sources
from orchestrator.planning.environ import of_data
from orchestrator.requests import PushRequest
from orchestrator.sync.contents import Contents
from orchestrator.value import Value
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import asking
from orchestrator.verbs.environment import absent, check_data


class Pushed(Value):
    data: Data
    dataset: Contents | None  # None: no host could be reached
    placed: Mapping[str, str]  # host -> its path there
    failed: Mapping[str, HostError]

    def variables(self, host: str) -> dict[str, str]:
        """Return the variables by which tasks on a host find the data."""
        return of_data(self.placed[host], self.data)


def push(request: PushRequest, emit: Emit, caller: Caller) -> Pushed:
    """Send what hosts lack; raise UsageError if there is nothing to send."""
    data = _data_of(request.inventory, request.paths)
    dataset, placed = None, dict[str, str]()
    with asking(request.inventory.hosts, caller) as (fleet, bad):
        hosts = [
            host for host in request.inventory.hosts if host.name in fleet.sessions and host.name not in bad
        ]
        if hosts:
            dataset = read_sources(sources(data), emit)
            placed, failed = bring(fleet, hosts, dataset, emit, run="push", limit=request.limit)
            bad.update(failed)
    return Pushed(data, dataset, placed, bad)


def _data_of(inventory: Inventory, paths: Sequence[str]) -> Data:
    """Return the data to send; raise UsageError if there is none."""
    if paths:
        for path in paths:
            if trouble := absent(str(Path(path).absolute())):
                raise UsageError(f"{path} {trouble}", hint="name a folder or a file on this machine")
        try:
            return Data(paths=data_paths([str(Path(path).absolute()) for path in paths]))
        except Wrong as error:
            raise UsageError(f"orchestrate push: {error}") from None
    if inventory.data is None:
        raise UsageError(
            f"{inventory.source} has no [data], and no PATH is given",
            hint="`orchestrate push DIR`; or add [data] to it, and `launch` sends the data, too",
        )
    check_data(inventory)
    return inventory.data
