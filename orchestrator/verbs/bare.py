"""`launch` on hosts of which only the names are known: what `init` would find out, for one launch."""

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
from orchestrator.verbs.environment import with_header
from orchestrator.verbs.launch import prepare


def surveyed(
    request: LaunchRequest,
    words: Sequence[str],
    caller: Caller,
    accepts: init.Accepts,
    agrees: Callable[[str], bool],
) -> LaunchRequest:
    """Look at the hosts that `words` name: their addresses, a Python with TensorFlow, or else an [env].

    The caller is asked whether new host keys are known, and whether an environment is to be made.
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
    framework = prepare(request, caller, resolves=False).plan.recipe.framework  # refuses mistakes first
    fleet, bad = init.connect(list(hosts.values()), caller, accepts)
    with contextlib.closing(fleet):
        machines, silent = survey(fleet, addresses)
    if bad := {**bad, **silent}:
        raise SeveralErrors(bad.values())
    text = init.text(hosts, machines, {}, None)
    found = config.parse(text, inventory.source)
    python, names = choose_python(machines.values()), ranges.fold(machines)
    has_header = with_header(request)[0].inventory.environment is not None
    if has_header or framework is not FrameworkName.TENSORFLOW:
        plain = tuple(replace(host, python=DEFAULT_PYTHON) for host in found.hosts)
        found = replace(found, hosts=plain, environment=None)
    elif python is not None:
        caller.tell(f"{names}: TensorFlow {python.tensorflow} in {python.path}")
    elif choose_python(machines.values(), made=True) is None and not agrees(
        f"{names}: no Python with TensorFlow on each; make the environment of `setup` there?"
    ):
        found = replace(found, environment=None)
    return replace(request, inventory=found)
