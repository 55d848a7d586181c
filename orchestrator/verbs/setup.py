"""`setup`: make the environment of [env] on every host that lacks it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from orchestrator.errors import HostError
from orchestrator.events import Stepped
from orchestrator.model import Host
from orchestrator.phases.context import Emit
from orchestrator.phases.setup import make_environments, runs_in
from orchestrator.requests import SetupRequest
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import asking
from orchestrator.verbs.environment import with_environment


class Prepared(Struct, frozen=True):
    """The hosts with an environment."""

    name: str  # of the environment
    hosts: tuple[Host, ...]
    own: tuple[str, ...]  # hosts with a Python of the user's
    failed: Mapping[str, HostError]


def setup(request: SetupRequest, emit: Emit, caller: Caller) -> Prepared:
    """Resolve the packages, and make their environment where it is missing."""
    emit(Stepped("", "resolve packages"))
    inventory, plan, lock = with_environment(request.inventory, renew=request.upgrade)
    emit(Stepped("", ""))
    trainers = tuple(host for host in inventory.hosts if runs_in(host, plan))
    own = tuple(host.name for host in inventory.hosts if host not in trainers)
    with asking(trainers, caller) as (fleet, bad):
        connected = [host for host in trainers if host.name in fleet.sessions and host.name not in bad]
        bad.update(make_environments(fleet, connected, plan, lock, emit))
    return Prepared(plan.name, trainers, own, bad)
