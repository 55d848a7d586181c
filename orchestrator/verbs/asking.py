"""Connections of a verb, and takeovers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from orchestrator import timings
from orchestrator.errors import HostErrors, UsageError
from orchestrator.model import Host, Order
from orchestrator.store import RunFolder
from orchestrator.store.key import read_key
from orchestrator.unbroken import unbroken
from orchestrator.verbs import Caller
from orchestrator.verbs.keeping import Errand, start

if TYPE_CHECKING:
    from orchestrator.fleet import Fleet
    from orchestrator.fleet.containers import Inside
    from orchestrator.ssh.keys import Secrets


def logins(hosts: Sequence[Host], caller: Caller) -> Secrets | None:
    """Ask for the passphrases of keys once, before connecting; return None if there is nobody to ask."""
    if caller.asks is None:
        return None
    from orchestrator.ssh.keys import prepare

    far = [host for host in hosts if not host.is_local]
    return prepare(far, caller.asks, tell=caller.tell, masters=caller.masters)


def key_or_none(caller: Caller) -> bytes | None:
    """Return the user's key if it exists and is usable; a problem with it is only a warning."""
    try:
        return read_key()
    except UsageError as error:
        caller.tell(f"warning: {error.what}: {error.why}; {error.hint}")
        return None


def adopt(folder: RunFolder, caller: Caller, *, stop: Order | None = None) -> bool:
    """Take a run over, asking for passphrases if possible; return False if it already has a keeper."""
    if folder.has_keeper():
        return False
    plan = folder.read_plan()
    # A restart needs the secrets, and reports missing ones. A plan that is not ours could name any
    # variable of this environment.
    names = () if plan.untrusted else plan.secrets
    secrets = {name: os.environ[name] for name in names if name in os.environ}
    passphrases = logins((*plan.hosts, *plan.spares), caller)
    errand = Errand(folder, plan, key_or_none(caller), passphrases, secrets, stop=stop)
    return unbroken(partial(start, errand))


@contextlib.contextmanager
def asking(
    hosts: Sequence[Host], caller: Caller, inside: Inside | None = None
) -> Iterator[tuple[Fleet, HostErrors]]:
    """Yield a fleet connected to `hosts`, and the errors of those that could not be reached.

    The connections are closed at the end. Without `inside` they lead to the machines, past containers.
    """
    with unconnected(hosts, caller, inside) as fleet:
        yield fleet, fleet.connect(hosts)


def unconnected(
    hosts: Sequence[Host], caller: Caller, inside: Inside | None = None
) -> contextlib.AbstractContextManager[Fleet]:
    """Yield a fleet with logins for `hosts`, not connected yet; its connections are closed at the end."""
    return contextlib.closing(new_fleet(logins(hosts, caller), inside))


def new_fleet(secrets: Secrets | None, inside: Inside | None = None) -> Fleet:
    """Return a fleet with these passphrases, which the caller closes."""
    from orchestrator.connectors import Connectors
    from orchestrator.fleet import Fleet

    return Fleet(Connectors(secrets, inside), lambda _frame: None, timings.read(os.environ))
