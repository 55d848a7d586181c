"""Connections of a verb's own, for as long as it asks.

A person is asked for passphrases first: once, before the fan-out, and only at a terminal.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator import timings
from orchestrator.cli.desk.out import silent, tell
from orchestrator.errors import HostError, UsageError
from orchestrator.launching.keeping import Errand, start
from orchestrator.model import Host, Order
from orchestrator.store import RunFolder
from orchestrator.store.key import read_key

if TYPE_CHECKING:
    from orchestrator.fleet import Fleet
    from orchestrator.ssh.keys import Secrets


def logins(hosts: Sequence[Host]) -> Secrets | None:
    """Ask for what only a person knows of these hosts' keys; None where nobody can be asked.

    Raise UsageError instead for a program that imports us.
    """
    terminal = all(stream and stream.isatty() for stream in (sys.stdin, sys.stderr))
    if not terminal and not silent.get():
        return None
    from orchestrator.ssh.keys import prepare

    far = [host for host in hosts if not host.is_local]
    return prepare(far, _ask if terminal else _refuse, tell=tell, masters=terminal)


def _ask(question: str) -> str:
    """Ask at the terminal; Ctrl-C and SIGTERM end us there, even where they are counted for a run."""
    mine = threading.current_thread() is threading.main_thread()  # no other may set a handler
    ends = (signal.SIGINT, signal.SIGTERM) if mine else ()
    before = {number: signal.signal(number, signal.default_int_handler) for number in ends}
    try:
        return getpass.getpass(question)
    except EOFError:  # Ctrl-D: nothing was typed, as for `ssh`
        return ""
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refuse(question: str) -> str:
    raise UsageError(
        f"there is no terminal to ask at: {question.removesuffix(': ')}",
        hint="`ssh-add` the key first, or name another one with `identity`",
    )


def key_or_none() -> bytes | None:
    """The user's key, where it is and can be used; what is wrong with it must not keep a run from its end."""
    try:
        return read_key()
    except UsageError as error:
        tell(f"warning: {error.what}: {error.why}; {error.hint}")
        return None


def adopt(folder: RunFolder, *, stop: Order | None = None) -> bool:
    """Take a run over, for a person who may be asked for passphrases; False when it has a keeper already."""
    if folder.has_keeper():
        return False
    plan = folder.read_plan()
    # A restart needs them; what this machine does not have is said then. A plan that is not ours could name
    # whatever this environment holds.
    names = () if plan.hearsay else plan.secrets
    secrets = {name: os.environ[name] for name in names if name in os.environ}
    asked = logins((*plan.hosts, *plan.spares))
    return start(Errand(folder, plan, key_or_none(), asked, secrets, stop=stop))


@contextlib.contextmanager
def asking(hosts: Sequence[Host]) -> Iterator[tuple[Fleet, dict[str, HostError]]]:
    """A fleet that is connected to `hosts`, and the errors of those that it did not reach.

    The connections are closed at the end.
    """
    with unconnected(hosts) as fleet:
        yield fleet, fleet.connect(hosts)


def unconnected(hosts: Sequence[Host]) -> contextlib.AbstractContextManager[Fleet]:
    """A fleet that has still to connect to `hosts`; whatever it then has is closed at the end."""
    return contextlib.closing(new_fleet(logins(hosts)))


def new_fleet(secrets: Secrets | None) -> Fleet:
    """One with passphrases that are known, to be closed by whoever takes it."""
    from orchestrator.connectors import Connectors
    from orchestrator.fleet import Fleet

    return Fleet(Connectors(secrets), lambda _frame: None, timings.read(os.environ))
