"""Connections of a verb's own, for as long as it asks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from orchestrator import timings
from orchestrator.errors import HostError, UsageError
from orchestrator.model import Host, Order
from orchestrator.store import RunFolder
from orchestrator.store.key import read_key
from orchestrator.unbroken import unbroken
from orchestrator.verbs import Caller
from orchestrator.verbs.keeping import Errand, start

if TYPE_CHECKING:
    from orchestrator.fleet import Fleet
    from orchestrator.ssh.keys import Secrets


def logins(hosts: Sequence[Host], caller: Caller) -> Secrets | None:
    """Ask for passphrases of keys once, before the fan-out; return None where nobody can answer."""
    if caller.asks is None:
        return None
    from orchestrator.ssh.keys import prepare

    far = [host for host in hosts if not host.is_local]
    return prepare(far, caller.asks, tell=caller.tell, masters=caller.masters)


def key_or_none(caller: Caller) -> bytes | None:
    """The user's key, where it is and can be used; what is wrong with it must not keep a run from its end."""
    try:
        return read_key()
    except UsageError as error:
        caller.tell(f"warning: {error.what}: {error.why}; {error.hint}")
        return None


def adopt(folder: RunFolder, caller: Caller, *, stop: Order | None = None) -> bool:
    """Take a run over, for a person who may be asked for passphrases; False when it has a keeper already."""
    if folder.has_keeper():
        return False
    plan = folder.read_plan()
    # A restart needs them; what this machine does not have is said then. A plan that is not ours could name
    # whatever this environment holds.
    names = () if plan.hearsay else plan.secrets
    secrets = {name: os.environ[name] for name in names if name in os.environ}
    asked = logins((*plan.hosts, *plan.spares), caller)
    errand = Errand(folder, plan, key_or_none(caller), asked, secrets, stop=stop)
    return unbroken(partial(start, errand))


@contextlib.contextmanager
def asking(hosts: Sequence[Host], caller: Caller) -> Iterator[tuple[Fleet, dict[str, HostError]]]:
    """A fleet that is connected to `hosts`, and the errors of those that it did not reach.

    The connections are closed at the end.
    """
    with unconnected(hosts, caller) as fleet:
        yield fleet, fleet.connect(hosts)


def unconnected(hosts: Sequence[Host], caller: Caller) -> contextlib.AbstractContextManager[Fleet]:
    """A fleet that has still to connect to `hosts`; whatever it then has is closed at the end."""
    return contextlib.closing(new_fleet(logins(hosts, caller)))


def new_fleet(secrets: Secrets | None) -> Fleet:
    """One with passphrases that are known, to be closed by whoever takes it."""
    from orchestrator.connectors import Connectors
    from orchestrator.fleet import Fleet

    return Fleet(Connectors(secrets), lambda _frame: None, timings.read(os.environ))
