"""`setup`: create the [env] environment, or fetch the container image, on every host."""

import time
from collections.abc import Mapping

from orchestrator.errors import HostError
from orchestrator.events import Stepped
from orchestrator.fleet.containers import Inside
from orchestrator.model import Host, in_environment
from orchestrator.phases.context import Emit
from orchestrator.phases.setup import make_environments, runs_in
from orchestrator.requests import SetupRequest
from orchestrator.store.known import new_run_id
from orchestrator.value import Value
from orchestrator.verbs import Caller, images
from orchestrator.verbs.asking import asking
from orchestrator.verbs.environment import locked


class Prepared(Value):
    """The hosts with an environment."""

    name: str  # of the environment; "" without [env]
    hosts: tuple[Host, ...]
    own: tuple[str, ...]  # hosts with a Python of the user's
    failed: Mapping[str, HostError]


def setup(request: SetupRequest, emit: Emit, caller: Caller) -> Prepared:
    """Bring images and the environment of [env] to hosts that lack them."""
    bad = images.bring(request.inventory.hosts, emit, caller)
    if request.inventory.environment is None:
        return Prepared("", request.inventory.hosts, (), bad)
    emit(Stepped("", "resolve packages"))
    plan, lock = locked(request.inventory.environment, renew=request.upgrade)
    hosts = [in_environment(host, plan) for host in request.inventory.hosts]
    emit(Stepped("", ""))
    trainers = tuple(host for host in hosts if runs_in(host, plan))
    own = tuple(host.name for host in hosts if host not in trainers)
    reached = [host for host in trainers if host.name not in bad]
    with asking(reached, caller, Inside(new_run_id(time.time()))) as (fleet, unreached):
        bad.update(unreached)
        connected = [host for host in trainers if host.name in fleet.sessions and host.name not in bad]
        bad.update(make_environments(fleet, connected, plan, lock, emit))
    return Prepared(plan.name, trainers, own, bad)
