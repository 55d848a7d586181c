"""What works with `ssh` works here: jumps, proxies, keys, agents, ssh_config, login shells."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import HostError
from orchestrator.fleet import Fleet
from orchestrator.model import Host
from orchestrator.rehearsal import Cluster, sshd
from orchestrator.ssh.connect import SshConnector
from orchestrator.ssh.prepare import prepare
from orchestrator.ssh.resolve import resolve
from orchestrator.transport import Link
from tests.ssh.keyagent import add


def run(link: Link, *argv: str) -> tuple[str, int | None]:
    channel = link.open(argv)
    data = b"".join(iter(lambda: channel.recv(65536), b""))
    return data.decode(), channel.wait(10)


def greet(connector: SshConnector, host: Host) -> str:
    link = connector.connect(host, 20)
    try:
        return run(link, "echo", "here")[0]
    finally:
        link.close()


def keygen(*words: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *words], check=True, capture_output=True, stdin=subprocess.DEVNULL)


@pytest.fixture
def config(cluster: Cluster, tmp_path: Path) -> Path:
    """A copy of the cluster's ssh_config, to be changed."""
    path = tmp_path / "ssh config"
    path.write_text(cluster.ssh_config.read_text())
    return path


def prepend(config: Path, *lines: str) -> None:
    config.write_text("\n".join([*lines, ""]) + config.read_text())


def use(config: Path, host: Host) -> Host:
    return replace(host, ssh_config=str(config))


# --- jumps ---


def sessions_of(cluster: Cluster, number: int) -> int:
    """How many logins the n-th sshd has seen."""
    log = cluster.servers[number].folder / "sshd.log"
    return log.read_text().count("Accepted publickey")


def test_hosts_behind_a_bastion_share_one_connection_to_it(cluster: Cluster, config: Path) -> None:
    bastion, *others = cluster.hosts
    prepend(config, *(f"Host {host.ssh}\nProxyJump {bastion.ssh}" for host in others))
    connector = SshConnector()
    before = sessions_of(cluster, 0)
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda host: greet(connector, use(config, host)), others))
    connector.close()
    assert answers == ["here\n"] * 3
    assert sessions_of(cluster, 0) == before + 1


def test_a_chain_of_jumps(connector: SshConnector, cluster: Cluster, config: Path) -> None:
    a, b, c, d = cluster.hosts
    prepend(config, f"Host {d.ssh}", f"ProxyJump {b.ssh},{c.ssh}", f"Host {b.ssh}", f"ProxyJump {a.ssh}")
    host = use(config, d)
    assert [jump.alias for jump in resolve(host).jumps] == [a.ssh, b.ssh, c.ssh]
    before = [sessions_of(cluster, number) for number in range(4)]
    assert greet(connector, host) == "here\n"
    assert [sessions_of(cluster, number) for number in range(4)] == [count + 1 for count in before]


def test_a_bastion_that_refuses_is_to_blame_once_for_all(cluster: Cluster, config: Path) -> None:
    bastion, *others = cluster.hosts
    prepend(config, f"Host {bastion.ssh}", "User nobody-of-that-name")
    prepend(config, *(f"Host {host.ssh}\nProxyJump {bastion.ssh}" for host in others))
    connector = SshConnector()

    def refused(host: Host) -> HostError:
        with pytest.raises(HostError) as caught:
            connector.connect(use(config, host), 20)
        return caught.value

    with ThreadPoolExecutor(3) as pool:
        errors = list(pool.map(refused, others))
    connector.close()
    assert [error.host for error in errors] == [host.name for host in others]
    assert {error.what for error in errors} == {
        f"cannot be reached: its bastion {bastion.ssh} refused the login"
    }
    assert {error.kind for error in errors} == {"auth"}


def test_a_host_that_its_bastion_cannot_reach(
    connector: SshConnector, cluster: Cluster, config: Path
) -> None:
    (port,) = sshd.free_ports(1)
    prepend(config, f"Host {cluster.hosts[1].ssh}", f"ProxyJump {cluster.hosts[0].ssh}", f"Port {port}")
    with pytest.raises(HostError) as caught:
        connector.connect(use(config, cluster.hosts[1]), 20)
    assert caught.value.kind == "refused"
    assert f"(through {cluster.hosts[0].ssh})" in caught.value.why


def test_a_bastion_that_was_cut_is_connected_to_again(
    connector: SshConnector, cluster: Cluster, config: Path
) -> None:
    del cluster
    with Cluster(2, homes=True, name="cut") as own:
        bastion, host = own.hosts
        config.write_text(own.ssh_config.read_text())
        prepend(config, f"Host {host.ssh}", f"ProxyJump {bastion.ssh}")
        link = connector.connect(use(config, host), 20)
        assert run(link, "true") == ("", 0)
        cut_sessions(own.servers[0].folder)
        Fleet(connector, lambda _: None).open(use(config, host)).close()
        link.close()


def cut_sessions(server: Path) -> None:
    """Kill the processes that serve this sshd's connections, not the one that listens."""
    done = subprocess.run(
        ["pgrep", "-f", f"{server}/sshd_config"], capture_output=True, text=True, check=True
    )
    (listener,) = (int(pid) for pid in done.stdout.split())
    done = subprocess.run(["pgrep", "-P", str(listener)], capture_output=True, text=True, check=True)
    for pid in done.stdout.split():
        os.kill(int(pid), 9)


# --- keys ---


def test_a_key_with_a_passphrase_is_asked_for_once(cluster: Cluster, tmp_path: Path) -> None:
    key = tmp_path / "locked key"
    keygen("-t", "ed25519", "-N", "open sesame", "-f", str(key))
    with _authorized(cluster, key):
        hosts = [replace(host, identity=str(key)) for host in _without_identity(cluster, tmp_path)]
        prompts: list[str] = []

        def ask(prompt: str) -> str:
            prompts.append(prompt)
            return "wrong" if len(prompts) == 1 else "open sesame"

        secrets = prepare(hosts, ask)
        assert [str(key) in prompt for prompt in prompts] == [True, True]
        assert "open sesame" not in repr(secrets)
        connector = SshConnector(secrets)
        assert {greet(connector, host) for host in hosts} == {"here\n"}
        connector.close()

        with pytest.raises(HostError) as caught:
            SshConnector().connect(hosts[0], 20)
        assert caught.value.kind == "auth"
        assert f"{key} is encrypted" in caught.value.why
        assert caught.value.hint == f"`ssh-add '{key}'`"


@pytest.mark.parametrize(("kind", "form"), [("ed25519", ""), ("ecdsa", "PEM")])
def test_every_kind_of_key(cluster: Cluster, tmp_path: Path, kind: str, form: str) -> None:
    key = tmp_path / "key"
    keygen("-t", kind, "-N", "passphrase", "-f", str(key), *(["-m", form] if form else []))
    with _authorized(cluster, key):
        (host, *_) = _without_identity(cluster, tmp_path)
        host = replace(host, identity=str(key))
        connector = SshConnector(prepare([host], lambda _: "passphrase"))
        assert greet(connector, host) == "here\n"
        connector.close()


def _without_identity(cluster: Cluster, tmp_path: Path) -> list[Host]:
    config = tmp_path / "no-identity"
    config.write_text(cluster.ssh_config.read_text().replace("IdentityFile", "#"))
    return [replace(host, ssh_config=str(config)) for host in cluster.hosts]


class _authorized:  # noqa: N801 - used as a function
    """Let another key in for a while."""

    def __init__(self, cluster: Cluster, key: Path) -> None:
        self._file = cluster.folder / "authorized_keys"
        self._key = Path(f"{key}.pub")

    def __enter__(self) -> None:
        self._before = self._file.read_text()
        self._file.write_text(self._before + self._key.read_text())

    def __exit__(self, *_: object) -> None:
        self._file.write_text(self._before)


def test_the_agent_s_key_is_used_and_its_file_not_asked_for(
    cluster: Cluster, tmp_path: Path, agent: Path
) -> None:
    key = tmp_path / "key"
    keygen("-t", "ed25519", "-N", "", "-f", str(key))
    add(agent, key)
    keygen("-p", "-N", "secret", "-P", "", "-f", str(key))
    with _authorized(cluster, key):
        config = tmp_path / "config"
        text = cluster.ssh_config.read_text().replace("IdentityFile", "#")
        config.write_text(f"Host *\nIdentityAgent {agent}\nIdentityFile {key}\n" + text)
        hosts = [use(config, host) for host in cluster.hosts]
        secrets = prepare(hosts, lambda _: pytest.fail("asked"))
        connector = SshConnector(secrets)
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(lambda host: greet(connector, host), hosts)) == {"here\n"}
        connector.close()


def test_chosen_keys_are_offered_before_the_agent_s_others(
    cluster: Cluster, tmp_path: Path, agent: Path, config: Path
) -> None:
    for number in range(7):  # more than a host puts up with
        sshd.write_key(tmp_path / f"other{number}")
        add(agent, tmp_path / f"other{number}")
    prepend(config, "Host *", f"IdentityAgent {agent}", "IdentitiesOnly no")
    connector = SshConnector()
    assert greet(connector, use(config, cluster.hosts[0])) == "here\n"
    connector.close()


# --- ssh_config ---


def test_include_match_tokens_and_overrides(
    connector: SshConnector, cluster: Cluster, tmp_path: Path
) -> None:
    host = cluster.hosts[0]
    more = tmp_path / "more files"
    more.mkdir()
    (more / "one.conf").write_text("Host gpu-*\n    HostName wrong\n")
    main = tmp_path / "config"
    main.write_text(
        f'Match originalhost gpu-01 exec "test %n = gpu-01"\n'
        f"    HostName {host.address}\n    Port {cluster.servers[0].port}\n"
        f'    UserKnownHostsFile "{cluster.known_hosts}"\n'
        f'Match all\nInclude "{more}/*.conf"\n'
        f'Host *\n    IdentityFile "{cluster.identity}"\n    User wrong\n'
    )
    me = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    alias = Host("first", "gpu-01", "10.0.0.1", user=me, ssh_config=str(main))
    assert greet(connector, alias) == "here\n"
    target = resolve(alias)
    assert (target.hostname, target.port, target.user) == (host.address, cluster.servers[0].port, me)
    port = sshd.free_ports(1)[0]
    assert resolve(replace(alias, port=port)).port == port
    assert resolve(replace(alias, ssh="gpu-02")).hostname == "wrong"


# --- login shells ---

ODD = [
    "two words",
    "it's",
    'q"q',
    "back\\slash",
    "\\'",
    "!bang",
    "$HOME",
    "`id`",
    "*",
    "",
    "-n",
    "ü",
    "#",
    "a;b|c&d",
]
SHELLS = ["sh", "bash", "dash", "csh", "fish", "zsh"]


def shell_cluster(shell: str) -> Cluster:
    """Its logins run commands by this shell."""
    force = f'ForceCommand {shell} -c "$SSH_ORIGINAL_COMMAND"'
    return Cluster(1, homes=True, options=dict([force.split(" ", 1)]))


@pytest.mark.parametrize("shell", SHELLS)
def test_any_login_shell_takes_any_argument(connector: SshConnector, shell: str) -> None:
    if subprocess.run(["which", shell], capture_output=True, check=False).returncode:
        pytest.skip(f"{shell} is not installed")
    with shell_cluster(shell) as own:
        link = connector.connect(own.hosts[0], 20)
        code = "import sys; print(sys.argv[1:])"
        assert run(link, sys.executable, "-c", code, *ODD) == (f"{ODD}\n", 0)
        home = run(link, "printenv", "HOME")[0].strip()
        program = Path(home) / "my programs" / "say it's"
        program.parent.mkdir()
        program.write_text('#!/bin/sh\necho "it is $1"\n')
        program.chmod(0o755)
        assert run(link, "~/my programs/say it's", "so") == ("it is so\n", 0)
        link.close()
