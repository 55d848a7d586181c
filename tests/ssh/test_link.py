"""What a link promises: bytes both ways, statuses, and readers that wake up."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import paramiko
import pytest
from paramiko.common import cMSG_CHANNEL_CLOSE, cMSG_CHANNEL_DATA, cMSG_CHANNEL_EOF

from orchestrator.model import Host
from orchestrator.rehearsal import Cluster
from orchestrator.ssh.connect import SshConnector
from orchestrator.transport import Channel, Link
from tests.ssh.runs.desk import until


def read_all(channel: Channel) -> bytes:
    return b"".join(iter(lambda: channel.recv(65536), b""))


def run(link: Link, *argv: str) -> tuple[bytes, int | None]:
    channel = link.open(argv)
    return read_all(channel), channel.wait(10)


@pytest.mark.parametrize("error", [EOFError, ConnectionResetError, paramiko.SSHException])
def test_a_connection_that_goes_while_it_is_read_loses_nothing_that_came(
    cluster: Cluster, connect: Callable[[Host], Link], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Whoever reads much makes room for more, by a message that finds nobody."""
    size = 6_000_000  # less than a channel has room for, and more than it takes to make room
    code = f"import sys, time; sys.stdout.buffer.write(bytes({size})); sys.stdout.flush(); time.sleep(600)"
    channel: Any = connect(cluster.hosts[0]).open([sys.executable, "-c", code])
    until("all of it is here", lambda: len(channel._channel.in_buffer) == size)
    reader = threading.current_thread()
    transport: Any = paramiko.Transport
    send = transport._send_user_message

    def gone(transport: paramiko.Transport, message: paramiko.Message) -> None:
        if threading.current_thread() is reader:
            raise error("gone")
        send(transport, message)

    with monkeypatch.context() as patch:
        patch.setattr(transport, "_send_user_message", gone)
        assert sum(len(channel.recv(65536)) for _ in range(size // 65536 + 1)) == size
    channel.close()


def test_a_server_that_dies_ends_the_stream() -> None:
    with Cluster(1, homes=True) as doomed:
        own = SshConnector()
        channel = own.connect(doomed.hosts[0], 20).open(["sh", "-c", "echo up; exec sleep 600"])
        assert channel.recv(10) == b"up\n"
        doomed.close()
        assert channel.recv(10) == b""
        assert channel.wait(5) == -1
        own.close()


@pytest.mark.parametrize("late", ["EOF", "data", "close"])
def test_what_a_close_overtakes_does_not_end_the_connection(
    link: Link, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """paramiko makes a message under a lock and sends it without: the order here is one that occurs."""
    channels: list[paramiko.Channel] = []
    open_session = paramiko.Transport.open_session

    def noted(transport: paramiko.Transport, **options: float) -> paramiko.Channel:
        channels.append(open_session(transport, **options))  # type: ignore[arg-type]
        return channels[-1]

    monkeypatch.setattr(paramiko.Transport, "open_session", noted)
    closed = link.open(["true"])
    read_all(closed)
    assert closed.wait(10) == 0
    closed.close()
    channel = channels[0]
    message = paramiko.Message()
    message.add_byte({"EOF": cMSG_CHANNEL_EOF, "data": cMSG_CHANNEL_DATA, "close": cMSG_CHANNEL_CLOSE}[late])
    message.add_int(channel.remote_chanid)
    if late == "data":
        message.add_string(b"late")
    run(link, "true")  # and the far end has forgotten the channel
    way: Any = channel.transport
    way._send_user_message(message)
    assert run(link, "echo", "here") == (b"here\n", 0)
