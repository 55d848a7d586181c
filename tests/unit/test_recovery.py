"""A lost host is tried again until it is back, whatever is raised meanwhile."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.connectors import connectors
from orchestrator.errors import HereError, HostError, Trouble
from orchestrator.events import Event, HostLost
from orchestrator.fleet import Fleet
from orchestrator.model import LOCAL, Host
from orchestrator.names import RunId
from orchestrator.phases.context import CodeSource, Inbox, Reconnected, Run
from orchestrator.phases.restart import recovery
from orchestrator.ssh import resolve
from orchestrator.store import RunFolder
from orchestrator.store.bus import Bus
from orchestrator.transport import Link
from tests.unit.plans import host, make

CHANGED = HostError("a", "shows another host key than the one we know", kind=Trouble.HOSTKEY_CHANGED, why="w")


class Troubled:
    """Fails in each of these ways before it connects to this machine."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = iter(errors)
        self._inner = connectors()

    def connect(self, host: Host, timeout: float) -> Link:
        for error in self.errors:
            raise error
        return self._inner.connect(host, timeout)

    def close(self) -> None:
        self._inner.close()


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def test_nothing_ends_the_thread_that_tries_again_and_a_changed_key_is_told_once(
    tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_BACKOFF", (0.0,))
    events: list[Event] = []
    bus = Bus(lambda stamped: events.append(stamped.event))
    here = OSError(errno.EMFILE, "Too many open files")
    fleet = Fleet(Troubled(here, KeyError("a bug"), CHANGED, CHANGED, here), inbox.put)
    plan = make(replace(host("a"), ssh=LOCAL, state=str(tmp_path / "state"), agent_python=sys.executable))
    run = Run(RunFolder(tmp_path, RunId("r1")), plan, bus, fleet, inbox, "me", CodeSource())
    recovery.lose(run, "a", "the connection was closed", bus.emit)
    item = inbox.get(20)
    assert isinstance(item, Reconnected)
    item.session.close()
    fleet.close()
    reasons = [event.why for event in events if isinstance(event, HostLost)]
    assert reasons[0] == "the connection was closed"
    assert [CHANGED.what in reason for reason in reasons[1:]] == [False, True, False]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EAGAIN, errno.ENOMEM])
def test_an_ssh_that_cannot_be_started_is_this_machines_trouble(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(*_: object, **__: object) -> object:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("subprocess.run", fails)
    resolve._slots.clear()
    with pytest.raises(HereError) as refusal:
        resolve.resolve(host("a"))
    assert refusal.value.why == os.strerror(number)


WITHOUT_SSH = """
from concurrent.futures import ThreadPoolExecutor
from orchestrator.connectors import connectors
from orchestrator.errors import HostError
from orchestrator.model import Host
connector = connectors()
def kind(number):
    try:
        connector.connect(Host(f"h{number}", "127.0.0.1", "127.0.0.1", port=1, ssh_config="/dev/null"), 5)
    except HostError as error:
        return str(error.kind)
with ThreadPoolExecutor(8) as pool:
    print(set(pool.map(kind, range(8))))
"""


def test_without_an_ssh_program_many_hosts_at_once_say_so(tmp_path: Path) -> None:
    environ = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SSH], env=environ, capture_output=True, text=True, check=False
    )
    assert done.stdout == "{'here'}\n", done.stderr
