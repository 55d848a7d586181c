"""What works with `ssh` works here: jumps, proxies, keys, agents, ssh_config, login shells."""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.errors import HostError
from orchestrator.fleet import Fleet
from orchestrator.model import Host, Way
from orchestrator.rehearsal import Cluster
from orchestrator.rehearsal import cluster as sshd
from orchestrator.ssh import keys
from orchestrator.ssh.connect import SshConnector
from orchestrator.ssh.keys import prepare
from tests.ssh.runs.desk import kill_all, sessions_of
from tests.ssh.test_transports import run


def greet(connector: SshConnector, host: Host) -> bytes:
    link = connector.connect(host, 20)
    try:
        return run(link, "echo", "here")[0]
    finally:
        link.close()


def keygen(*words: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *words], check=True, capture_output=True, stdin=subprocess.DEVNULL)


def prepend(config: Path, *lines: str) -> None:
    config.write_text("\n".join([*lines, ""]) + config.read_text())


def use(config: Path, host: Host) -> Host:
    return replace(host, ssh_config=str(config))


# --- jumps ---


def test_hosts_behind_a_bastion_share_one_connection_to_it(
    connector: SshConnector, cluster: Cluster, config: Path
) -> None:
    bastion, *others = cluster.hosts
    prepend(config, *(f"Host {host.ssh}\nProxyJump {bastion.ssh}" for host in others))

    def logins() -> int:
        return cluster.servers[0].log().count("Accepted publickey")

    before = logins()
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda host: greet(connector, use(config, host)), others))
    assert answers == [b"here\n"] * 3
    assert logins() == before + 1


def test_a_bastion_that_refuses_is_to_blame_once_for_all(
    connector: SshConnector, cluster: Cluster, config: Path
) -> None:
    bastion, *others = cluster.hosts
    prepend(config, f"Host {bastion.ssh}", "User nobody-of-that-name")
    prepend(config, *(f"Host {host.ssh}\nProxyJump {bastion.ssh}" for host in others))

    def refused(host: Host) -> HostError:
        with pytest.raises(HostError) as caught:
            connector.connect(use(config, host), 20)
        return caught.value

    with ThreadPoolExecutor(3) as pool:
        errors = list(pool.map(refused, others))
    assert [error.host for error in errors] == [host.name for host in others]
    assert {error.what for error in errors} == {
        f"cannot be reached: the bastion {bastion.ssh} refused the login"
    }
    assert {error.kind for error in errors} == {"auth"}


def test_a_bastion_that_was_cut_is_connected_to_again(
    connector: SshConnector, cluster: Cluster, config: Path
) -> None:
    del cluster
    with Cluster(2, name="cut") as own:
        bastion, host = own.hosts
        config.write_text(own.ssh_config.read_text())
        prepend(config, f"Host {host.ssh}", f"ProxyJump {bastion.ssh}")
        link = connector.connect(use(config, host), 20)
        assert run(link, "true") == (b"", 0)
        kill_all(sessions_of(own.servers[0]))
        Fleet(connector, lambda _: None).open(use(config, host)).close()
        link.close()


# --- keys ---


@contextmanager
def running_agent(sock: Path) -> Iterator[Path]:
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    yield sock
    process.terminate()
    process.wait()
    process.stdout.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """A running ssh-agent; its socket."""
    with running_agent(tmp_path / "agent") as sock:
        yield sock


def add(agent: Path, key: Path) -> None:
    environment = {**os.environ, "SSH_AUTH_SOCK": str(agent)}
    subprocess.run(["ssh-add", "-q", str(key)], check=True, env=environment, capture_output=True)


def test_a_key_with_a_passphrase_is_asked_for_once(cluster: Cluster, tmp_path: Path) -> None:
    key = tmp_path / "locked key"
    keygen("-t", "ed25519", "-N", "open sesame", "-f", str(key))
    with authorized(cluster, key):
        config = tmp_path / "no-identity"
        config.write_text(cluster.ssh_config.read_text().replace("IdentityFile", "#"))
        hosts = [replace(use(config, host), identity=str(key)) for host in cluster.hosts]
        prompts: list[str] = []

        def ask(prompt: str) -> str:
            prompts.append(prompt)
            return "wrong" if len(prompts) == 1 else "open sesame"

        secrets = prepare(hosts, ask)
        assert [str(key) in prompt for prompt in prompts] == [True, True]
        assert "open sesame" not in repr(secrets)
        connector = SshConnector(secrets)
        assert {greet(connector, host) for host in hosts} == {b"here\n"}
        connector.close()

        with pytest.raises(HostError) as caught:
            SshConnector().connect(hosts[0], 20)
        assert caught.value.kind == "auth"
        assert f"{key} is encrypted" in caught.value.why
        assert caught.value.hint == f"`ssh-add '{key}'`"


@contextmanager
def authorized(cluster: Cluster, key: Path) -> Iterator[None]:
    """Let another key in for a while."""
    file = cluster.folder / "authorized_keys"
    before = file.read_text()
    file.write_text(before + Path(f"{key}.pub").read_text())
    try:
        yield
    finally:
        file.write_text(before)


def test_the_agent_s_key_is_used_and_its_file_not_asked_for(
    cluster: Cluster, tmp_path: Path, agent: Path
) -> None:
    key = tmp_path / "key"
    keygen("-t", "ed25519", "-N", "", "-f", str(key))
    add(agent, key)
    keygen("-p", "-N", "secret", "-P", "", "-f", str(key))
    with authorized(cluster, key):
        config = tmp_path / "config"
        text = cluster.ssh_config.read_text().replace("IdentityFile", "#")
        config.write_text(f"Host *\nIdentityAgent {agent}\nIdentityFile {key}\n" + text)
        hosts = [use(config, host) for host in cluster.hosts]
        secrets = prepare(hosts, lambda _: pytest.fail("asked"))
        connector = SshConnector(secrets)
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(lambda host: greet(connector, host), hosts)) == {b"here\n"}
        connector.close()


def test_an_agent_that_was_restarted_is_used_again(
    connector: SshConnector, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_AGENT_AGAIN", 0.0)
    key, config = tmp_path / "key", tmp_path / "config"
    keygen("-t", "ed25519", "-N", "", "-f", str(key))
    config.write_text(
        f"Host *\nIdentityAgent {tmp_path / 'agent'}\n"
        + cluster.ssh_config.read_text().replace("IdentityFile", "#").replace("IdentitiesOnly yes", "")
    )
    host = replace(use(config, cluster.hosts[0]), via=Way.PARAMIKO)
    with authorized(cluster, key):
        for _ in range(2):
            with running_agent(tmp_path / "agent") as agent:
                add(agent, key)
                assert greet(connector, host) == b"here\n"
            with pytest.raises(HostError):
                greet(connector, host)


def test_a_key_after_refused_ones_lets_in(connector: SshConnector, cluster: Cluster, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(cluster.ssh_config.read_text())
    for name in ("first", "second"):
        keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / name))
        prepend(config, f"IdentityFile {tmp_path / name}")
    host = replace(use(config, cluster.hosts[0]), via=Way.PARAMIKO)
    assert greet(connector, host) == b"here\n"


def test_a_key_that_was_replaced_is_offered(
    connector: SshConnector, cluster: Cluster, tmp_path: Path
) -> None:
    key, config = tmp_path / "key", tmp_path / "no-identity"
    config.write_text(cluster.ssh_config.read_text().replace("IdentityFile", "#"))
    host = replace(use(config, cluster.hosts[0]), identity=str(key), via=Way.PARAMIKO)
    for _ in range(2):  # in the middle of a run, with the file of authorized keys
        keygen("-t", "ed25519", "-N", "", "-f", str(key))
        with authorized(cluster, key):
            assert greet(connector, host) == b"here\n"
        key.unlink()


def test_chosen_keys_are_offered_before_the_agent_s_others(
    connector: SshConnector, cluster: Cluster, tmp_path: Path, agent: Path, config: Path
) -> None:
    for number in range(7):  # more than a host puts up with
        sshd.write_key(tmp_path / f"other{number}")
        add(agent, tmp_path / f"other{number}")
    prepend(config, "Host *", f"IdentityAgent {agent}", "IdentitiesOnly no")
    assert greet(connector, use(config, cluster.hosts[0])) == b"here\n"
