"""Faults of accounts, bastions and ways, made for real: each has words of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.connectors import connectors
from orchestrator.errors import HostError
from orchestrator.fleet import Fleet
from orchestrator.model import Host
from orchestrator.rehearsal import Cluster
from tests.exclusive import exclusive
from tests.ports import unanswering


def failure(host: Host) -> HostError:
    """What keeps us from the host's agent."""
    fleet = Fleet(connectors(), lambda _frame: None)
    try:
        return fleet.connect([host])[host.name]
    finally:
        fleet.close()


# --- accounts ---


@dataclass(frozen=True)
class Account:
    name: str
    host: Host

    def change(self, *argv: str) -> None:
        subprocess.run([*argv, self.name], check=True, capture_output=True)


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    """A user of this machine, for the tests of this file."""
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("only root can make accounts")
    name = f"orch{secrets.token_hex(4)}"
    with exclusive("accounts"):  # of two at a time one may be refused
        subprocess.run(["useradd", "-m", "-s", "/bin/bash", name], check=True, capture_output=True)
    try:
        with Cluster(1) as cluster:
            cluster.folder.chmod(0o755)
            host = replace(cluster.hosts[0], user=name, agent_python="python3", state=f"/home/{name}/state")
            yield Account(name, host)
    finally:
        with exclusive("accounts"):
            subprocess.run(["userdel", "-r", name], check=False, capture_output=True)


@contextmanager
def limits(account: Account, what: str) -> Iterator[None]:
    file = Path(f"/etc/security/limits.d/zz-{account.name}.conf")
    file.write_text(f"{account.name} hard {what}\n")
    try:
        yield
    finally:
        file.unlink()


def test_an_expired_account(account: Account) -> None:
    account.change("chage", "-E", "0")
    try:
        error = failure(account.host)
    finally:
        account.change("chage", "-E", "-1")
    assert (error.kind, error.what) == ("auth", "refused the login")
    assert "it hung up" in error.why


@pytest.mark.parametrize("limit", ["nproc 0", "nofile 8"])
def test_no_process_left_for_the_account(account: Account, limit: str) -> None:
    with limits(account, limit):
        error = failure(account.host)
    assert (error.kind, error.what) == ("no-process", "cannot start a process for us")
    assert "sshd closes the channel" in error.why
    assert "limits.conf" in error.hint


# --- bastions ---


def behind(cluster: Cluster) -> Host:
    """The second host behind the first."""
    bastion, host = cluster.hosts
    config = cluster.ssh_config
    front = [f"Host {host.ssh}", f"ProxyJump {bastion.ssh}", ""]
    config.write_text("\n".join(front) + config.read_text())
    return host


@pytest.mark.parametrize("option", [("AllowTcpForwarding", "no")])
def test_a_bastion_that_forwards_nothing(option: tuple[str, str]) -> None:
    with Cluster(2, options=dict([option])) as own:
        error = failure(behind(own))
        config = own.folder / "by-command"
        command = f"ProxyCommand ssh -F {own.ssh_config} -W %h:%p {own.hosts[0].ssh}"
        config.write_text(f"Host {own.hosts[1].ssh}\n{command}\n" + own.ssh_config.read_text())
        by_command = failure(replace(own.hosts[1], ssh_config=str(config)))
    for one in (error, by_command):
        assert (one.kind, one.what) == ("forbidden", "may not be reached through its bastion")
        assert "AllowTcpForwarding" in one.hint


def test_a_host_behind_a_bastion_that_is_cut_off() -> None:
    with ExitStack() as stack:
        own = stack.enter_context(Cluster(2))
        port = stack.enter_context(unanswering())
        host, bastion = behind(own), own.hosts[0].ssh
        lines = [
            "Host cut",
            f"ProxyJump {bastion}",
            "HostName 127.0.0.1",
            f"Port {port}",
            "",
        ]
        own.ssh_config.write_text("\n".join(lines) + own.ssh_config.read_text())
        fleet = Fleet(connectors(), lambda _frame: None)
        stack.callback(fleet.close)
        assert fleet.connect([host]) == {}  # its bastion has let us in: all of the time is for the way on
        with pytest.raises(HostError) as caught:
            fleet.open(replace(host, ssh="cut"), 2)
    error = caught.value
    assert error.kind == "timeout"
    assert f"{own.hosts[0].ssh} got no answer from it in 2 s" in error.why
