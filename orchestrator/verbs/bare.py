"""`launch` on hosts of which only the names are known: what `init` would discover, for one launch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from orchestrator import ranges
from orchestrator.config import load as config
from orchestrator.errors import SeveralErrors
from orchestrator.model import DEFAULT_PYTHON, FrameworkName
from orchestrator.phases.survey import choose_python, survey
from orchestrator.requests import LaunchRequest
from orchestrator.verbs import Caller, init
from orchestrator.verbs.launch import prepare


def surveyed(
    request: LaunchRequest,
    words: Sequence[str],
    caller: Caller,
    accepts: init.Accepts,
    agrees: Callable[[str], bool],
) -> LaunchRequest:
    """Examine the hosts named in `words`: their addresses, a Python with TensorFlow, or otherwise an [env].

    The caller is asked whether new host keys are known, and whether to create an environment.
    """
    inventory = request.inventory
    addresses = {host.name: host.address for host in inventory.hosts}
    hosts = {
        ssh: replace(host, address=addresses[host.name])
        for ssh, host in init.read_hosts(words, None).items()
        if host.name in addresses
    }
    if all(host.is_local for host in hosts.values()):
        return request
    made = prepare(request, caller, resolves=False)  # reject mistakes first
    fleet, bad = init.connect(list(hosts.values()), caller, accepts)
    with contextlib.closing(fleet):
        machines, silent = survey(fleet, addresses)
    if bad := bad | silent:
        raise SeveralErrors(bad.values())
    text = init.text(hosts, machines, {}, None)
    examined = config.parse(text, inventory.source)
    python, names = choose_python(machines.values()), ranges.fold(machines)
    has_header = made.request.inventory.environment is not None
    if has_header or made.plan.recipe.framework is not FrameworkName.TENSORFLOW:
        plain = tuple(replace(host, python=DEFAULT_PYTHON) for host in examined.hosts)
        examined = replace(examined, hosts=plain, environment=None)
    elif python is not None:
        caller.tell(f"{names}: TensorFlow {python.tensorflow} in {python.path}")
    elif choose_python(machines.values(), made=True) is None and not agrees(
        f"{names}: no Python with TensorFlow on each; make the environment of `setup` there?"
    ):
        examined = replace(examined, environment=None)
    return replace(request, inventory=examined)
