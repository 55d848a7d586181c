"""The contract of a link: bytes both ways, exit statuses, and readers that wake up."""

import contextlib
import socket
import struct
import sys
import threading
from typing import Any

import paramiko
import pytest
from paramiko.common import MSG_CHANNEL_DATA, cMSG_CHANNEL_CLOSE, cMSG_CHANNEL_DATA, cMSG_CHANNEL_EOF

from orchestrator.errors import HostError
from orchestrator.ssh.link import MOST_PACKET, Transport
from orchestrator.transport import Link
from tests.ssh.runs.desk import until
from tests.ssh.test_transports import read_all, run


@pytest.mark.parametrize("error", [EOFError, ConnectionResetError, paramiko.SSHException])
def test_a_connection_lost_during_reads_loses_no_received_data(
    link: Link, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Reading much sends a window adjustment, which then fails."""
    size = 6_000_000  # less than a channel's window, but enough to trigger a window adjustment
    code = f"import sys, time; sys.stdout.buffer.write(bytes({size})); sys.stdout.flush(); time.sleep(600)"
    channel: Any = link.open([sys.executable, "-c", code])
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


def test_a_connection_lost_before_the_command_is_one_error(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise EOFError

    with monkeypatch.context() as patch:
        patch.setattr(paramiko.Channel, "exec_command", gone)
        patch.setattr(paramiko.Channel, "close", gone)  # it also sends a message
        with pytest.raises(HostError):
            link.open(["true"])


@pytest.mark.parametrize("late", ["EOF", "data", "close"])
def test_a_message_overtaken_by_a_close_does_not_end_the_connection(
    link: Link, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """paramiko creates a message under a lock and sends it without: this order can occur."""
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
    run(link, "true")  # and the remote side has dropped the channel
    way: Any = channel.transport
    way._send_user_message(message)
    assert run(link, "echo", "here") == (b"here\n", 0)


@pytest.mark.parametrize("size", [MOST_PACKET + 1024, 2**32 - 8])
def test_an_oversized_packet_is_not_waited_for(size: int) -> None:
    """paramiko would read as many bytes as announced, even before it has checked a key."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with contextlib.suppress(OSError):
            theirs.sendall(b"SSH-2.0-OpenSSH_9.9\r\n" + struct.pack(">IB", size - 4, 4) + bytes(64 << 20))

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    with (
        contextlib.closing(Transport(ours)) as transport,
        ours,
        theirs,
        pytest.raises(paramiko.SSHException, match="was announced"),
    ):
        transport.start_client(timeout=30)
    server.join(30)


def test_data_beyond_the_channel_s_window_ends_the_connection() -> None:
    """A reader that is blocked, for example by our own disk, must not buffer without bound."""
    channel: Any = paramiko.Channel(1)
    channel._set_window(10_000, 10_000)
    data = paramiko.Message()
    data.add_string(bytes(5000))

    def flood() -> None:
        for _ in range(100):
            data.rewind()
            Transport._channel_handler_table[MSG_CHANNEL_DATA](channel, data)

    with pytest.raises(paramiko.SSHException, match="window"):
        flood()
    assert len(channel.in_buffer) <= 3 * 10_000
