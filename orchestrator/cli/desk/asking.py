"""Connections of a verb's own, for as long as it asks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.desk.logins import logins
from orchestrator.errors import HostError
from orchestrator.model import Host

if TYPE_CHECKING:
    from orchestrator.fleet import Fleet
    from orchestrator.ssh.keys import Secrets


@contextlib.contextmanager
def asking(hosts: Sequence[Host]) -> Iterator[tuple[Fleet, dict[str, HostError]]]:
    """A fleet that is connected to `hosts`, and the errors of those that it did not reach.

    A person is asked for passphrases first, where there is one. The connections are closed at the end.
    """
    with asking_with(hosts, logins(hosts)) as opened:
        yield opened


@contextlib.contextmanager
def asking_with(
    hosts: Sequence[Host], secrets: Secrets | None
) -> Iterator[tuple[Fleet, dict[str, HostError]]]:
    """The same, with passphrases that are known."""
    with unconnected(secrets) as fleet:
        yield fleet, fleet.connect(hosts)


@contextlib.contextmanager
def unconnected(secrets: Secrets | None) -> Iterator[Fleet]:
    """A fleet that has still to connect; whatever it then has is closed at the end."""
    with contextlib.closing(new_fleet(secrets)) as fleet:
        yield fleet


def new_fleet(secrets: Secrets | None) -> Fleet:
    """The same, to be closed by whoever takes it."""
    from orchestrator import timings
    from orchestrator.connectors import connectors
    from orchestrator.fleet import Fleet

    return Fleet(connectors(secrets), lambda _frame: None, timings.read(os.environ))
