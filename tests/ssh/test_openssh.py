"""What paramiko cannot do goes over OpenSSH's client by itself, and ends as `ssh` would end it."""

import itertools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.connectors import Connectors
from orchestrator.errors import HostError
from orchestrator.fleet import Fleet
from orchestrator.model import Host, Way
from orchestrator.rehearsal import Cluster
from orchestrator.ssh.keys import Secrets, prepare
from orchestrator.ssh.openssh import command
from tests.ssh.test_ways import authorized, keygen

Lines = Callable[[Cluster, Path], list[str]]
_numbers = itertools.count()


def host_key(cluster: Cluster) -> str:
    """Return the `type base64` of the first host."""
    return " ".join(cluster.known_hosts.read_text().splitlines()[0].split()[1:3])


def with_lines(cluster: Cluster, folder: Path, *lines: str, identity: bool = True) -> Host:
    """Return the first host with these lines in its ssh_config, perhaps without the cluster's key."""
    host = cluster.hosts[0]
    config = folder / f"ssh_config-{next(_numbers)}"  # what ssh says of a file is remembered for a while
    text = cluster.ssh_config.read_text()
    text = text if identity else text.replace("IdentityFile", "#").replace("IdentitiesOnly", "#")
    config.write_text("\n".join([f"Host {host.ssh}", *lines, ""]) + text)
    return replace(host, ssh_config=str(config))


def remark(host: Host, secrets: Secrets | None = None) -> str:
    """Start an agent there, and return why the way is not the usual one; raise HostError."""
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
def test_a_way_and_why(cluster: Cluster, tmp_path: Path, lines: Lines, reason: str) -> None:
    host = with_lines(cluster, tmp_path, *lines(cluster, tmp_path))
    assert remark(host) == (f"over OpenSSH's own client, for {reason}" if reason else "")
    if reason:
        with pytest.raises(HostError) as insisted:
            remark(replace(host, via=Way.PARAMIKO))
        assert (insisted.value.kind, insisted.value.host) == ("config", host.name)


@pytest.mark.parametrize("way", [Way.OPENSSH, Way.PARAMIKO])
def test_a_session_of_its_own_whatever_ssh_config_wants(cluster: Cluster, tmp_path: Path, way: Way) -> None:
    wants = ("ForkAfterAuthentication yes", "StdinNull yes", "SessionType none", "RequestTTY force")
    for want in (*wants, "RemoteCommand true", "SessionType subsystem"):
        remark(replace(with_lines(cluster, tmp_path, want), via=way))


def test_no_agent_is_forwarded_whatever_ssh_config_wants(tmp_path: Path) -> None:
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
def test_where_ssh_refuses_its_words_are_the_reason(
    cluster: Cluster, tmp_path: Path, lines: Lines, kind: str
) -> None:
    with pytest.raises(HostError) as refusal:
        remark(with_lines(cluster, tmp_path, *lines(cluster, tmp_path)))
    assert (refusal.value.kind, refusal.value.host) == (kind, cluster.hosts[0].name)
    assert refusal.value.why.startswith("ssh")


def test_what_a_proxy_prints_before_it_ends_is_the_reason(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(HostError) as refusal:
        remark(with_lines(cluster, tmp_path, "ProxyCommand sh -c 'exec no-such-proxy %h %p'"))
    assert refusal.value.what == "cannot be reached: its ProxyCommand ended"
    assert "no-such-proxy: not found" in refusal.value.why


def test_a_server_with_newer_algorithms_than_paramiko() -> None:
    with Cluster(1, options={"KexAlgorithms": "sntrup761x25519-sha512@openssh.com"}) as own:
        assert remark(own.hosts[0]).endswith(" for algorithms of its server")


def test_a_master_of_the_user_is_used(cluster: Cluster, tmp_path: Path) -> None:
    """Somebody logged in by hand, with a second factor perhaps; here nothing else would get in."""
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


def test_what_openssh_asks_is_asked_before_and_once(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, askpass = tmp_path / "locked", tmp_path / "askpass"
    keygen("-t", "ed25519", "-N", "open sesame", "-f", str(key))
    askpass.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho open sesame\n")
    askpass.chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(askpass))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")  # stands in for the terminal
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
