"""Every reason that a host is unreachable becomes one error: what, why, and what to try."""

import math
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.errors import HostError
from orchestrator.fleet import Fleet
from orchestrator.model import Host
from orchestrator.rehearsal import Cluster
from orchestrator.ssh.connect import SshConnector
from tests.ssh.test_ways import prepend, use


def refused(connector: SshConnector, host: Host, timeout: float = 20) -> HostError:
    with pytest.raises(HostError) as caught:
        connector.connect(host, timeout)
    error = caught.value
    assert error.host == host.name
    assert host.name not in error.what  # so that hosts with the same failure can be folded
    assert error.why
    assert error.hint
    return error


@pytest.mark.parametrize("strict", ["accept-new", "no"])
def test_accept_new_remembers_a_key_once_and_never_replaces_it(
    connector: SshConnector, cluster: Cluster, config: Path, strict: str
) -> None:
    prepend(config, "Host *", f"StrictHostKeyChecking {strict}")
    host, known_hosts = use(config, cluster.hosts[0]), config.with_name("known_hosts")
    mine, other, *_ = known_hosts.read_text().splitlines()
    known_hosts.write_text("# no newline at the end")
    for _ in range(2):
        connector.connect(host, 20).close()
    assert known_hosts.read_text().splitlines()[1:] == [mine]
    openssh = ["ssh", "-F", str(host.ssh_config), "-o", "StrictHostKeyChecking=yes", host.ssh, "true"]
    subprocess.run(openssh, check=True, capture_output=True)  # OpenSSH can read what we wrote
    known_hosts.write_text(f"{mine.split()[0]} {' '.join(other.split()[1:])}\n")
    assert refused(SshConnector(), host).kind == "hostkey-changed"


def test_an_unreadable_key_is_named(connector: SshConnector, cluster: Cluster, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    host = replace(cluster.hosts[0], user="nobody-of-that-name", identity=str(broken))
    broken.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nnonsense\n-----END OPENSSH PRIVATE KEY-----\n")
    broken.chmod(0o644)
    error = refused(connector, host)
    assert f"{broken} can be read by others" in error.why  # as for ssh, whatever else is set
    broken.chmod(0o600)
    error = refused(SshConnector(), host)
    assert f"{broken} is not a usable private key" in error.why


@contextmanager
def listener(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """Run a server on a port of 127.0.0.1 that is not sshd."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def run() -> None:
            while True:
                try:
                    client = server.accept()[0]
                except OSError:
                    return
                kept.append(client)
                serve(client)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for client in kept:
                client.close()


def test_a_non_ssh_server_is_reported(connector: SshConnector, cluster: Cluster, config: Path) -> None:
    with listener(lambda client: client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 60)) as port:
        prepend(config, "Host *", "HostName 127.0.0.1", f"Port {port}")
        error = refused(connector, use(config, cluster.hosts[0]), timeout=60)
    assert error.kind in {"banner", "hung-up", "algorithms"}
    assert "speaks another protocol" in error.why


@pytest.mark.parametrize("most", [0, 100, 1_500, 20_000])
def test_a_connection_that_fails_early_is_retried(
    connector: SshConnector, cluster: Cluster, config: Path, most: int
) -> None:
    """Before sshd's banner, as with MaxStartups, or in the key exchange, the login, or the agent's start."""
    visits = 0
    port = cluster.servers[0].port

    def serve(client: socket.socket) -> None:
        nonlocal visits
        visits += 1
        upstream = stack.enter_context(socket.create_connection((cluster.hosts[0].address, port)))
        limit = most if visits <= 2 else math.inf
        for pair in ((client, upstream, limit), (upstream, client)):
            threading.Thread(target=_pipe, args=pair, daemon=True).start()

    with ExitStack() as stack, listener(serve) as door:
        key = cluster.known_hosts.read_text().split()[1:3]
        config.with_name("known_hosts").write_text(f"[127.0.0.1]:{door} {' '.join(key)}\n")
        prepend(config, "Host *", "HostName 127.0.0.1", f"Port {door}")
        fleet = Fleet(connector, lambda _: None)
        fleet.open(use(config, cluster.hosts[0]), 20).close()
        fleet.close()
    assert visits == 3


def _pipe(source: socket.socket, target: socket.socket, most: float = math.inf) -> None:
    """Copy data; close both ends after `most` bytes."""
    with suppress(OSError):
        while most > 0 and (data := source.recv(int(min(most, 65536)))):
            target.sendall(data)
            most -= len(data)
        target.shutdown(socket.SHUT_WR if most else socket.SHUT_RDWR)
        if not most:
            source.shutdown(socket.SHUT_RDWR)


def test_a_server_that_hangs_up_at_the_login_may_give_a_reason(tmp_path: Path) -> None:
    """As PAM does: an expired account, a machine that is booting. Or it asks for more than a key."""
    banner = tmp_path / "banner"
    banner.write_text("Your account\nhas \x1b[31mexpired.\n")
    two = {"AuthenticationMethods": "publickey,password", "PasswordAuthentication": "yes"}
    with Cluster(1, options={"Banner": str(banner), "MaxAuthTries": "1", **two}) as own:
        error = refused(SshConnector(), replace(own.hosts[0], identity=str(own.folder / "sshd-1/host_key")))
        asked = refused(SshConnector(), own.hosts[0])
    assert "it closed the connection: Your account has expired." in error.why
    assert 'it asks for password; `via = "openssh"`' in asked.why


def test_a_bad_ssh_config_is_quoted(connector: SshConnector, cluster: Cluster, config: Path) -> None:
    prepend(config, "NoSuchKeyword yes")
    error = refused(connector, use(config, cluster.hosts[0]))
    assert error.kind == "config"
    assert "nosuchkeyword" in error.why
