"""Our agent behind every kind of login: it runs, or one error says what came instead."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.fleet import Session
from orchestrator.model import Host
from orchestrator.rehearsal import Cluster
from orchestrator.transport import Link

Connect = Callable[[Host], Link]


def start(connect: Connect, host: Host) -> Session:
    session = Session(host, connect(host), lambda _: None)
    try:
        session.start()
    except BaseException:
        session.close()
        raise
    return session


def forced(command: str) -> Cluster:
    return Cluster(1, homes=True, options={"ForceCommand": command})


WORKING = [
    ("sh", 'sh -c "$SSH_ORIGINAL_COMMAND"'),
    ("csh", 'csh -c "$SSH_ORIGINAL_COMMAND"'),
    ("fish", 'fish -c "$SSH_ORIGINAL_COMMAND"'),
    ("noisy", "echo 'Welcome!'; printf '\\0\\377 no newline'; echo oops >&2; eval \"$SSH_ORIGINAL_COMMAND\""),
    ("goodbye", 'eval "$SSH_ORIGINAL_COMMAND"; echo Goodbye'),
]


@pytest.mark.parametrize("command", [case[1] for case in WORKING], ids=[case[0] for case in WORKING])
def test_the_agent_runs(connect: Connect, command: str) -> None:
    shell = command.split(maxsplit=1)[0]
    if shell in {"csh", "fish"} and shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    with forced(command) as cluster:
        session = start(connect, cluster.hosts[0])
        assert session.request(wire.Ping()).time_ns > 0
        session.close()


def test_a_python_in_an_odd_place(connect: Connect, cluster: Cluster, tmp_path: Path) -> None:
    python = tmp_path / "my env's" / "py thon!"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    session = start(connect, replace(cluster.hosts[0], agent_python=str(python)))
    session.close()


FAILING = [
    ("forced elsewhere", "echo 'This account is for backups'", {}, "no-agent", "This account is for backups"),
    ("silent", "exit 0", {}, "no-agent", "status 0"),
    ("a start-up file without its shell", "exec /bin/zsshh", {}, "no-agent", "zsshh"),
    (
        "no python",
        'eval "$SSH_ORIGINAL_COMMAND"',
        {"agent_python": "/no/such/python"},
        "no-python",
        "/no/such",
    ),
]


@pytest.mark.parametrize(
    ("command", "changes", "kind", "why"), [case[1:] for case in FAILING], ids=[case[0] for case in FAILING]
)
def test_what_came_instead_is_said(
    connect: Connect, command: str, changes: dict[str, str], kind: str, why: str
) -> None:
    with forced(command) as cluster, pytest.raises(HostError) as caught:
        start(connect, replace(cluster.hosts[0], **changes))  # type: ignore[arg-type]
    assert caught.value.kind == kind
    assert why in caught.value.why
    assert caught.value.hint


def test_the_command_to_try_logs_in_as_we_did(connect: Connect) -> None:
    """With user, port and configuration of hosts.toml: tried as it stands, it shows what we met."""
    with forced('eval "$SSH_ORIGINAL_COMMAND" 2>&1 | head -c 1000; echo and this') as cluster:
        host = cluster.hosts[0]
        with pytest.raises(HostError) as caught:
            start(connect, replace(host, agent_python="/bin/echo"))
        command = re.search("`(ssh .*)`", caught.value.hint)
        assert command is not None
        done = subprocess.run(
            ["sh", "-c", command[1]], capture_output=True, text=True, timeout=30, check=False
        )
    assert done.stdout == "-V\nand this\n", done.stderr
