"""Everything that works with `ssh` works here: jumps, proxies, keys, agents, and ssh_config."""

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.connectors import Connectors
from orchestrator.errors import HostError
from orchestrator.fleet import Fleet
from orchestrator.model import Host, Way
from orchestrator.rehearsal import Cluster
from orchestrator.rehearsal import cluster as sshd
from orchestrator.ssh import keys
from orchestrator.ssh.connect import SshConnector
from orchestrator.ssh.keys import Secrets, prepare
from orchestrator.ssh.openssh import command
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


def test_a_refusing_bastion_is_blamed_once_for_all_hosts(
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


def test_a_lost_bastion_connection_is_restored(
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
    """Run an ssh-agent; return its socket."""
    with running_agent(tmp_path / "agent") as sock:
        yield sock


def add(agent: Path, key: Path) -> None:
    environment = {**os.environ, "SSH_AUTH_SOCK": str(agent)}
    subprocess.run(["ssh-add", "-q", str(key)], check=True, env=environment, capture_output=True)


def test_a_passphrase_is_asked_for_once(cluster: Cluster, tmp_path: Path) -> None:
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
    """Authorize another key while the block runs."""
    file = cluster.folder / "authorized_keys"
    before = file.read_text()
    file.write_text(before + Path(f"{key}.pub").read_text())
    try:
        yield
    finally:
        file.write_text(before)


def test_the_agent_s_key_is_used_without_asking_for_its_passphrase(
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


def test_a_restarted_agent_is_used_again(
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


def test_a_key_after_refused_ones_works(connector: SshConnector, cluster: Cluster, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(cluster.ssh_config.read_text())
    for name in ("first", "second"):
        keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / name))
        prepend(config, f"IdentityFile {tmp_path / name}")
    host = replace(use(config, cluster.hosts[0]), via=Way.PARAMIKO)
    assert greet(connector, host) == b"here\n"


def test_a_replaced_key_is_offered(connector: SshConnector, cluster: Cluster, tmp_path: Path) -> None:
    key, config = tmp_path / "key", tmp_path / "no-identity"
    config.write_text(cluster.ssh_config.read_text().replace("IdentityFile", "#"))
    host = replace(use(config, cluster.hosts[0]), identity=str(key), via=Way.PARAMIKO)
    for _ in range(2):  # during a run, including in authorized_keys
        keygen("-t", "ed25519", "-N", "", "-f", str(key))
        with authorized(cluster, key):
            assert greet(connector, host) == b"here\n"
        key.unlink()


def test_chosen_keys_are_offered_before_the_agent_s_others(
    connector: SshConnector, cluster: Cluster, tmp_path: Path, agent: Path, config: Path
) -> None:
    for number in range(7):  # more than a host accepts
        sshd.write_key(tmp_path / f"other{number}")
        add(agent, tmp_path / f"other{number}")
    prepend(config, "Host *", f"IdentityAgent {agent}", "IdentitiesOnly no")
    assert greet(connector, use(config, cluster.hosts[0])) == b"here\n"


# --- What paramiko cannot do is left to OpenSSH's client automatically, with the result `ssh` would give ---

Lines = Callable[[Cluster, Path], list[str]]
_numbers = itertools.count()


def host_key(cluster: Cluster) -> str:
    """Return the `type base64` of the first host."""
    return " ".join(cluster.known_hosts.read_text().splitlines()[0].split()[1:3])


def with_lines(cluster: Cluster, folder: Path, *lines: str, identity: bool = True) -> Host:
    """Return the first host with these lines in its ssh_config, perhaps without the cluster's key."""
    host = cluster.hosts[0]
    config = folder / f"ssh_config-{next(_numbers)}"  # output of `ssh -G` is cached for a while
    text = cluster.ssh_config.read_text()
    text = text if identity else text.replace("IdentityFile", "#").replace("IdentitiesOnly", "#")
    config.write_text("\n".join([f"Host {host.ssh}", *lines, ""]) + text)
    return replace(host, ssh_config=str(config))


def remark(host: Host, secrets: Secrets | None = None) -> str:
    """Start an agent, and return why OpenSSH's client is used, "" if it is not; raise HostError."""
    fleet = Fleet(Connectors(secrets), lambda _: None)
    try:
        session = fleet.open(host)
        session.close()
        return session.link.remark
    finally:
        fleet.close()


def known_hosts_command(cluster: Cluster, folder: Path) -> list[str]:
    (folder / "known").write_text(f'#!/bin/sh\necho "$1 {host_key(cluster)}"\n')
    (folder / "known").chmod(0o755)
    options = ["UserKnownHostsFile none", "GlobalKnownHostsFile none"]
    return [*options, f"KnownHostsCommand {folder}/known %H"]


def revoked_line(cluster: Cluster, folder: Path) -> list[str]:
    name, key = cluster.known_hosts.read_text().split()[0], host_key(cluster)
    (folder / "revoked").write_text(f"{name} {key}\n@revoked * {key}\n")
    return [f"UserKnownHostsFile {folder}/revoked"]


def changed_line(cluster: Cluster, folder: Path) -> list[str]:
    mine, other = (line.split() for line in cluster.known_hosts.read_text().splitlines()[:2])
    (folder / "changed").write_text(" ".join([mine[0], *other[1:]]) + "\n")
    return [f"UserKnownHostsFile {folder}/changed"]


def proxy(cluster: Cluster, _folder: Path) -> list[str]:
    return [f'ProxyCommand ssh -F "{cluster.ssh_config}" -W "[%h]:%p" {cluster.hosts[1].ssh}']


def unknown(_cluster: Cluster, _folder: Path) -> list[str]:
    return ["UserKnownHostsFile none", "KnownHostsCommand none", "VerifyHostKeyDNS yes"]


def line(text: str) -> Lines:
    return lambda _cluster, _folder: [text]


WAYS: list[tuple[Lines, str]] = [
    (line("LogLevel QUIET"), ""),
    (known_hosts_command, "KnownHostsCommand in ssh_config"),
    (proxy, "ProxyCommand in ssh_config"),
    (line("KexAlgorithms sntrup761x25519-sha512@openssh.com"), "KexAlgorithms in ssh_config"),
]


@pytest.mark.parametrize(("lines", "reason"), WAYS, ids=[case[1] or "usual" for case in WAYS])
def test_openssh_runs_for_a_reason(cluster: Cluster, tmp_path: Path, lines: Lines, reason: str) -> None:
    host = with_lines(cluster, tmp_path, *lines(cluster, tmp_path))
    assert remark(host) == (f"over OpenSSH's own client, for {reason}" if reason else "")
    if reason:
        with pytest.raises(HostError) as insisted:
            remark(replace(host, via=Way.PARAMIKO))
        assert (insisted.value.kind, insisted.value.host) == ("config", host.name)


@pytest.mark.parametrize("way", [Way.OPENSSH, Way.PARAMIKO])
def test_a_separate_session_whatever_ssh_config_sets(cluster: Cluster, tmp_path: Path, way: Way) -> None:
    wants = ("ForkAfterAuthentication yes", "StdinNull yes", "SessionType none", "RequestTTY force")
    for want in (*wants, "RemoteCommand true", "SessionType subsystem"):
        remark(replace(with_lines(cluster, tmp_path, want), via=way))


def test_no_agent_is_forwarded_whatever_ssh_config_sets(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("ForwardAgent yes\nForwardX11 yes\n")
    words = command(Host("a", "a", "a", ssh_config=str(tmp_path / "config")), "-G")
    options = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"forwardagent no", "forwardx11 no"} <= set(options)


REFUSED: list[tuple[Lines, str]] = [
    (lambda c, f: ["StrictHostKeyChecking no", *revoked_line(c, f)], "hostkey-revoked"),
    (lambda c, f: ["StrictHostKeyChecking no", "SetEnv A=1", *changed_line(c, f)], "hostkey-changed"),
    (unknown, "hostkey-unknown"),
    (line("SetEnv A=1\nUser nobody-of-that-name"), "auth"),
    (line("SetEnv A=1\nHostName 127.0.0.1\nPort 1"), "refused"),
]


@pytest.mark.parametrize(("lines", "kind"), REFUSED, ids=[f"{n} {case[1]}" for n, case in enumerate(REFUSED)])
def test_an_error_of_ssh_is_the_reason(cluster: Cluster, tmp_path: Path, lines: Lines, kind: str) -> None:
    with pytest.raises(HostError) as refusal:
        remark(with_lines(cluster, tmp_path, *lines(cluster, tmp_path)))
    assert (refusal.value.kind, refusal.value.host) == (kind, cluster.hosts[0].name)
    assert refusal.value.why.startswith("ssh")


def test_output_of_a_failed_proxy_is_the_reason(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(HostError) as refusal:
        remark(with_lines(cluster, tmp_path, "ProxyCommand sh -c 'exec no-such-proxy %h %p'"))
    assert refusal.value.what == "cannot be reached: its ProxyCommand ended"
    assert "no-such-proxy: not found" in refusal.value.why


def test_a_server_with_newer_algorithms_than_paramiko() -> None:
    with Cluster(1, options={"KexAlgorithms": "sntrup761x25519-sha512@openssh.com"}) as own:
        assert remark(own.hosts[0]).endswith(" for algorithms of its server")


def test_the_user_s_control_master_is_used(cluster: Cluster, tmp_path: Path) -> None:
    """The user logged in by hand, perhaps with a second factor; no other login would succeed here."""
    socket = tmp_path / "master"
    master = ["ssh", "-F", str(cluster.ssh_config), "-fNM", "-S", str(socket), cluster.hosts[0].ssh]
    subprocess.run(master, check=True, capture_output=True)
    try:
        lines = [f"ControlPath {socket}", "User nobody-of-that-name"]
        assert remark(with_lines(cluster, tmp_path, *lines, identity=False)).endswith(
            " ControlPath in ssh_config"
        )
    finally:
        subprocess.run(["ssh", "-S", str(socket), "-O", "exit", "x"], check=True, capture_output=True)


def test_prompts_of_openssh_appear_once_and_early(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, askpass = tmp_path / "locked", tmp_path / "askpass"
    keygen("-t", "ed25519", "-N", "open sesame", "-f", str(key))
    askpass.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho open sesame\n")
    askpass.chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(askpass))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")  # acts as the terminal
    with authorized(cluster, key):
        host = replace(with_lines(cluster, tmp_path, identity=False), via=Way.OPENSSH, identity=str(key))
        with pytest.raises(HostError) as refusal:
            remark(host)
        assert refusal.value.kind == "auth"
        secrets = prepare([host], lambda _: pytest.fail("paramiko's question"))
        assert (tmp_path / "asked").read_text() == "asked\n"
        assert secrets.masters is not None
        remark(host, secrets)
        assert (tmp_path / "asked").read_text() == "asked\n"
        assert not secrets.masters.exists()
