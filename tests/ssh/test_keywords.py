"""What ssh_config asks for is kept: where `ssh` refuses, we refuse; where it connects, so do we."""

from __future__ import annotations

import gzip
import itertools
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.rehearsal import Cluster, sshd
from orchestrator.ssh import knownhosts
from orchestrator.ssh.connect import SshConnector
from orchestrator.ssh.keys import Secrets
from orchestrator.ssh.prepare import prepare
from orchestrator.transport import Link
from tests.ssh.keyagent import add

DOCS = Path(__file__).parents[2] / "docs" / "ssh.md"
Configure = Callable[..., Host]
_numbers = itertools.count()


@pytest.fixture
def configure(cluster: Cluster, tmp_path: Path) -> Configure:
    """The first host, with these lines in front of its ssh_config."""

    def configure(*lines: str) -> Host:
        return with_lines(cluster, tmp_path, *lines)

    return configure


def with_lines(cluster: Cluster, folder: Path, *lines: str) -> Host:
    host = cluster.hosts[0]
    config = folder / f"ssh_config-{next(_numbers)}"  # what ssh says of a file is remembered for a while
    config.write_text("\n".join([f"Host {host.ssh}", *lines, ""]) + cluster.ssh_config.read_text())
    return replace(host, ssh_config=str(config))


def greet(host: Host, secrets: Secrets | None = None, *command: str) -> str:
    connector = SshConnector(secrets)
    link: Link | None = None
    try:
        link = connector.connect(host, 20)
        channel = link.open(command or ["echo", "here"])
        channel.send_eof()
        return b"".join(iter(lambda: channel.recv(65536), b"")).decode()
    finally:
        if link:
            link.close()
        connector.close()


def refused(host: Host) -> HostError:
    with pytest.raises(HostError) as caught:
        greet(host)
    assert caught.value.why
    assert caught.value.hint
    return caught.value


def ssh(host: Host) -> int:
    """The exit status of the real one."""
    argv = ["ssh", "-F", str(host.ssh_config), "-o", "BatchMode=yes", host.ssh, "true"]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode


def keygen(*words: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *words], check=True, capture_output=True, stdin=subprocess.DEVNULL)


def host_key(cluster: Cluster) -> str:
    """`type base64` of the first host."""
    return " ".join(cluster.known_hosts.read_text().splitlines()[0].split()[1:3])


# --- the table ---


CLIENT, _, SERVER = DOCS.read_text().partition("## What the server's settings do to us")


def table(text: str) -> dict[str, str]:
    """Keyword -> what docs/ssh.md says becomes of it."""
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", text, re.MULTILINE)
    return {name.lower(): row[1].strip() for row in rows for name in re.findall(r"`(\w+)`", row[0])}


def manual(page: str) -> set[str]:
    """The keywords of a man page; none where it is not installed."""
    file = Path(f"/usr/share/man/man5/{page}.5.gz")
    if not file.is_file():
        return set()
    text = gzip.decompress(file.read_bytes()).decode()
    return {word.lower() for word in re.findall(r"^\.It Cm ([A-Z]\w+)", text, re.MULTILINE)}


def test_every_keyword_of_ssh_is_in_the_table() -> None:
    dump = subprocess.run(["ssh", "-G", "-T", "x"], capture_output=True, text=True, check=True).stdout
    keywords = {line.split()[0].lower() for line in dump.splitlines()}
    assert len(keywords) > 50
    assert sorted((keywords | manual("ssh_config")) - table(CLIENT).keys()) == []


def test_every_keyword_of_sshd_is_in_the_table(cluster: Cluster) -> None:
    argv = [sshd.binary(), "-T", "-f", str(cluster.servers[0].folder / "sshd_config")]
    dump = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    keywords = {line.split()[0].lower() for line in dump.splitlines()}
    assert len(keywords) > 50
    assert sorted((keywords | manual("sshd_config")) - table(SERVER).keys()) == []


def test_the_code_reads_what_the_table_calls_honoured() -> None:
    resolve = Path(knownhosts.__file__).with_name("resolve.py").read_text()
    read = set(re.findall(r'options(?:\.get\(|, )"(\w+)"', resolve))
    rows = table(CLIENT)
    worded = {"verifyhostkeydns"}  # only named in a message
    old_names = {"challengeresponseauthentication", "pubkeyacceptedkeytypes"}
    assert {
        name for name in read if rows.get(name) not in {"honoured", "refused"}
    } - old_names - worded == set()


# --- refused, as by ssh ---


def lock_out(name: str) -> Callable[[Cluster, Path], list[str]]:
    return lambda _cluster, _folder: [name]


def revoked_line(cluster: Cluster, folder: Path) -> list[str]:
    (folder / "revoked").write_text(f"# gone\n{host_key(cluster)} a comment\n")
    return [f"RevokedHostKeys {folder}/revoked"]


def revoked_krl(cluster: Cluster, folder: Path) -> list[str]:
    (folder / "key.pub").write_text(host_key(cluster) + "\n")
    keygen("-k", "-f", str(folder / "krl"), str(folder / "key.pub"))
    return [f"RevokedHostKeys {folder}/krl"]


def revoked_missing(_cluster: Cluster, folder: Path) -> list[str]:
    return [f"RevokedHostKeys {folder}/none-such"]


def command_fails(_cluster: Cluster, _folder: Path) -> list[str]:
    return ["KnownHostsCommand /bin/false"]


REFUSED = [
    (revoked_line, "hostkey-revoked", "revoked:2 revokes its ssh-ed25519 key"),
    (revoked_krl, "hostkey-revoked", "krl revokes its ssh-ed25519 key"),
    (revoked_missing, "hostkey-revoked", "none-such cannot be read: No such file or directory"),
    (command_fails, "config", "KnownHostsCommand `/bin/false`: it ended with status 1"),
    (
        lock_out("HostKeyAlgorithms rsa-sha2-512"),
        "algorithms",
        "HostKeyAlgorithms of ssh_config rules out ssh-ed25519",
    ),
    (lock_out("PubkeyAcceptedAlgorithms rsa-sha2-512"), "auth", "which PubkeyAcceptedAlgorithms rules out"),
    (lock_out("PubkeyAuthentication no"), "auth", "ssh_config rules keys out"),
    (lock_out("PreferredAuthentications password"), "auth", "ssh_config rules keys out"),
    (lock_out("BindAddress 192.0.2.1"), "no-route", "BindAddress 192.0.2.1: Cannot assign"),
    (lock_out("BindInterface none-such"), "no-route", "BindInterface none-such: No such device"),
    (lock_out("AddressFamily inet6"), "resolve", "ddress"),
    (lock_out("IdentitiesOnly yes\nIdentityFile none"), "auth", "there was no key to offer"),
]


@pytest.mark.parametrize(
    ("lines", "kind", "why"), REFUSED, ids=[case[1] + str(n) for n, case in enumerate(REFUSED)]
)
def test_where_ssh_refuses_we_do(
    cluster: Cluster, tmp_path: Path, lines: Callable[[Cluster, Path], list[str]], kind: str, why: str
) -> None:
    host = with_lines(cluster, tmp_path, *lines(cluster, tmp_path))
    if "IdentityFile none" in "".join(lines(cluster, tmp_path)):
        path = Path(str(host.ssh_config))
        path.write_text(path.read_text().replace("    IdentityFile", "    #"))
    assert ssh(host) == 255
    error = refused(host)
    assert (error.kind, why in error.why) == (kind, True), error.why


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("KexAlgorithms", "sntrup761x25519-sha512@openssh.com"),
        ("Ciphers", "chacha20-poly1305@openssh.com"),
        ("MACs", "umac-128-etm@openssh.com"),
    ],
)
def test_what_only_our_client_lacks_is_said(configure: Configure, option: str, value: str) -> None:
    error = refused(configure(f"{option} {value}"))
    assert error.kind == "config"
    assert f"{option} of ssh_config leaves none of what our client (paramiko" in error.why


SERVERS = [
    (
        {"KexAlgorithms": "sntrup761x25519-sha512@openssh.com"},
        "as key exchange it offers only sntrup761x25519-",
    ),
    ({"Ciphers": "chacha20-poly1305@openssh.com"}, "as cipher it offers only chacha20-poly1305@openssh.com"),
    (
        {"MACs": "umac-128-etm@openssh.com", "Ciphers": "aes128-ctr"},
        "as MAC it offers only umac-128-etm@openssh.com",
    ),
]


@pytest.mark.parametrize(("options", "why"), SERVERS, ids=["kex", "cipher", "mac"])
def test_a_server_with_newer_algorithms_than_ours(options: dict[str, str], why: str) -> None:
    with Cluster(1, homes=True, options=options) as own:
        assert ssh(own.hosts[0]) == 0
        error = refused(own.hosts[0])
    assert (error.kind, why in error.why) == ("algorithms", True), error.why
    assert "which our client (paramiko" in error.why
    assert "older" not in error.why
    assert "in its sshd_config" in error.hint


def test_a_list_that_excludes_what_the_server_has_is_named(tmp_path: Path) -> None:
    with Cluster(1, homes=True, options={"KexAlgorithms": "ecdh-sha2-nistp256"}) as own:
        host = with_lines(own, tmp_path, "KexAlgorithms ecdh-sha2-nistp384,diffie-hellman-group16-sha512")
        assert ssh(host) == 255
        error = refused(host)
    assert "KexAlgorithms of ssh_config rules out ecdh-sha2-nistp256" in error.why


def test_a_short_rsa_host_key_is_refused(tmp_path: Path) -> None:
    keygen("-t", "rsa", "-b", "2048", "-N", "", "-f", str(tmp_path / "rsa"))
    with Cluster(1, homes=True, options={"HostKey": str(tmp_path / "rsa")}) as own:
        kind, blob = (tmp_path / "rsa.pub").read_text().split()[:2]
        name = own.known_hosts.read_text().split()[0]
        own.known_hosts.write_text(f"{name} {kind} {blob}\n")
        assert greet(own.hosts[0]) == "here\n"
        host = with_lines(own, tmp_path, "RequiredRSASize 3072")
        assert ssh(host) == 255
        error = refused(host)
    assert error.kind == "hostkey-short"
    assert "2048 bits" in error.why


def test_a_short_rsa_key_of_the_user_is_not_offered(cluster: Cluster, tmp_path: Path) -> None:
    keygen("-t", "rsa", "-b", "2048", "-N", "", "-f", str(tmp_path / "rsa"))
    with authorized(cluster, tmp_path / "rsa"):
        host = with_identity(cluster, tmp_path, f"IdentityFile {tmp_path}/rsa", "RequiredRSASize 3072")
        assert ssh(host) == 255
        error = refused(host)
    assert "has 2048 bits, and RequiredRSASize asks for 3072" in error.why


# --- honoured ---


def test_known_hosts_command(cluster: Cluster, tmp_path: Path) -> None:
    program = tmp_path / "known"
    log = tmp_path / "asked"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >> {log}\n'
        f'case "$1" in *first) exit 0 ;; esac\necho "$1 {host_key(cluster)}"\n'
    )
    program.chmod(0o755)
    options = ["UserKnownHostsFile none", "GlobalKnownHostsFile none"]
    host = with_lines(cluster, tmp_path, *options, f"KnownHostsCommand {program} %H %I %t %% %n")
    assert ssh(host) == 0
    theirs = log.read_text().splitlines()
    log.write_text("")
    assert greet(host) == "here\n"
    assert log.read_text().splitlines() == theirs  # asked in the same words
    host = with_lines(cluster, tmp_path, *options, f"KnownHostsCommand {program} first")
    assert ssh(host) == 255
    assert refused(host).kind == "hostkey-unknown"


def test_an_identity_of_which_only_the_public_half_is_here(
    cluster: Cluster, tmp_path: Path, agent: Path
) -> None:
    key = tmp_path / "key"
    keygen("-t", "ed25519", "-N", "", "-f", str(key))
    add(agent, key)
    for number in range(7):  # more than a host puts up with
        sshd.write_key(tmp_path / f"other{number}")
        add(agent, tmp_path / f"other{number}")
    key.rename(tmp_path / "elsewhere")
    with authorized(cluster, key):
        for file in ("key.pub", "key"):
            options = ["IdentitiesOnly yes", f"IdentityAgent {agent}", f"IdentityFile {tmp_path}/{file}"]
            host = with_identity(cluster, tmp_path, *options)
            assert ssh(host) == 0
            assert prepare([host], lambda _: pytest.fail("asked")) == Secrets()
            assert greet(host) == "here\n"
    host = with_identity(cluster, tmp_path, f"IdentityFile {tmp_path}/key.pub")
    assert "key.pub is a public key, and no agent holds its private half" in refused(host).why


def test_a_certificate_for_a_key_of_the_agent(tmp_path: Path, agent: Path) -> None:
    authority, key = tmp_path / "authority", tmp_path / "key"
    keygen("-t", "ed25519", "-N", "", "-f", str(authority))
    who = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    with Cluster(1, homes=True, options={"TrustedUserCAKeys": f"{authority}.pub"}) as own:
        for kind in ("ed25519", "rsa", "ecdsa"):
            keygen("-t", kind, "-N", "", "-f", str(key))
            keygen("-s", str(authority), "-I", "test", "-n", who, f"{key}.pub")
            add(agent, key)
            key.unlink()
            options = ["IdentitiesOnly yes", f"IdentityAgent {agent}", f"IdentityFile {key}.pub"]
            host = with_identity(own, tmp_path, *options, f"CertificateFile {key}-cert.pub")
            assert ssh(host) == 0
            assert greet(host) == "here\n"


def test_set_env(tmp_path: Path) -> None:
    with Cluster(1, homes=True, options={"AcceptEnv": "GIVEN*"}) as own:
        host = with_lines(own, tmp_path, 'SetEnv GIVEN_A=1 GIVEN_B="two words" OTHER=3')
        command = ["sh", "-c", 'echo "$GIVEN_A, $GIVEN_B, $OTHER"']
        assert greet(host, None, *command) == "1, two words, \n"


@pytest.mark.parametrize("line", ["BindAddress 127.0.0.9", "BindInterface lo"])
def test_where_a_connection_begins(configure: Configure, line: str) -> None:
    expected = "127.0.0.9" if "Address" in line else "127.0.0.1"
    assert greet(configure(line), None, "sh", "-c", "echo $SSH_CLIENT").split()[0] == expected


def test_no_host_authentication_for_localhost(configure: Configure) -> None:
    host = configure("NoHostAuthenticationForLocalhost yes", "UserKnownHostsFile none")
    assert ssh(host) == 0
    assert greet(host) == "here\n"
    host = configure("NoHostAuthenticationForLocalhost yes", "UserKnownHostsFile none", "HostKeyAlias other")
    assert ssh(host) == 255
    assert refused(host).kind == "hostkey-unknown"


def test_proxy_use_fdpass(cluster: Cluster, tmp_path: Path) -> None:
    program = tmp_path / "connect.py"
    program.write_text(
        "import socket, sys\n"
        "out = socket.socket(fileno=1)\n"
        "line = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "socket.send_fds(out, [b'x'], [line.fileno()])\n"
    )
    command = f"ProxyCommand python3 {program} %h %p"
    host = with_lines(cluster, tmp_path, command, "ProxyUseFdpass yes")
    assert ssh(host) == 0
    assert greet(host) == "here\n"


def test_connection_attempts(cluster: Cluster, tmp_path: Path) -> None:
    """Nobody listens at first; the second attempt comes after a second."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        host = with_lines(
            cluster, tmp_path, "HostName 127.0.0.1", f"Port {door.getsockname()[1]}", "ConnectionAttempts 30"
        )
        opened = threading.Event()

        def open_late() -> None:
            door.listen()
            opened.set()
            door.accept()[0].close()

        first = SshConnector()
        with pytest.raises(HostError) as caught:
            first.connect(replace(host, ssh_config=str(cluster.ssh_config), port=host_port(door)), 5)
        assert caught.value.kind == "refused"
        thread = threading.Timer(0.5, open_late)
        thread.start()
        assert refused(host).kind in {"banner", "refused"}
        assert opened.is_set()
        thread.join()


def host_port(door: object) -> int:
    return int(door.getsockname()[1])  # type: ignore[attr-defined]


def test_batch_mode_asks_for_no_passphrase(cluster: Cluster, tmp_path: Path) -> None:
    keygen("-t", "ed25519", "-N", "secret", "-f", str(tmp_path / "locked"))
    host = with_identity(cluster, tmp_path, f"IdentityFile {tmp_path}/locked", "BatchMode yes")
    assert prepare([host], lambda _: pytest.fail("asked")) == Secrets()
    asked = with_identity(cluster, tmp_path, f"IdentityFile {tmp_path}/locked")
    assert prepare([asked], lambda _: "secret").passphrases


@pytest.mark.parametrize(
    "lines",
    [
        ["PasswordAuthentication no", "KbdInteractiveAuthentication no"],
        ["BatchMode yes"],
        ["PreferredAuthentications publickey"],
    ],
)
def test_a_password_is_not_sent_where_ssh_would_not(configure: Configure, lines: list[str]) -> None:
    host = configure("User nobody-of-that-name", *lines)
    with pytest.raises(HostError) as caught:
        greet(host, Secrets(password="never sent"))
    assert "ssh_config rules passwords out" in caught.value.why
    assert "neither a key nor the password" not in caught.value.why


# --- helpers ---


def with_identity(cluster: Cluster, folder: Path, *lines: str) -> Host:
    """The first host, without the cluster's own key."""
    host = with_lines(cluster, folder, *lines)
    path = Path(str(host.ssh_config))
    text = path.read_text().replace(f'IdentityFile "{cluster.identity}"', "#")
    if not any("IdentityAgent" in line for line in lines):
        text = text.replace("IdentitiesOnly", "#")
    path.write_text(text)
    return host


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
