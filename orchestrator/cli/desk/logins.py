"""Asking for passphrases: once, before the fan-out, and only a person at a terminal."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.model import Host

if TYPE_CHECKING:
    from orchestrator.ssh.keys import Secrets


def logins(hosts: Sequence[Host]) -> Secrets | None:
    """What only a person knows of these hosts' keys; None where nobody can be asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    from orchestrator.ssh.prepare import prepare

    return prepare([host for host in hosts if not host.is_local], getpass.getpass)
