"""A server that announces or sends more than any may: the connection ends, and little is kept."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Any

import paramiko
import pytest
from paramiko.common import MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA

from orchestrator.ssh.link import MOST_PACKET, Transport

_LIMIT = 30.0


@pytest.mark.parametrize("size", [MOST_PACKET + 1000, 2**31 - 12, 2**32 - 8])
def test_a_packet_of_any_size_is_not_waited_for(size: int) -> None:
    """paramiko takes as many bytes as are announced, up to 4 GB."""
    ours, theirs = socket.socketpair()
    sent = 0

    def serve() -> None:
        nonlocal sent
        with contextlib.suppress(OSError):
            theirs.sendall(b"SSH-2.0-OpenSSH_9.9\r\n" + struct.pack(">IB", size - (size + 4) % 8, 4))
            while sent < 64 << 20:
                theirs.sendall(bytes(1 << 16))
                sent += 1 << 16

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    transport = Transport(ours)
    try:
        with pytest.raises(paramiko.SSHException, match="was announced"):
            transport.start_client(timeout=_LIMIT)
    finally:
        transport.close()
        ours.close()
        theirs.close()
        server.join(_LIMIT)
    assert sent < 4 << 20


def test_data_beyond_the_window_ends_the_connection() -> None:
    """A reader that waits, for our own disk say, must not become a buffer without a bound."""
    table = vars(Transport)["_channel_handler_table"]
    channel: Any = paramiko.Channel(1)
    channel._set_window(10_000, 10_000)
    data = paramiko.Message()
    data.add_string(bytes(5000))
    more = paramiko.Message()
    more.add_int(1)
    more.add_string(bytes(5000))

    def flood() -> None:
        for _ in range(100):
            for kind, message in ((MSG_CHANNEL_DATA, data), (MSG_CHANNEL_EXTENDED_DATA, more)):
                message.rewind()
                table[kind](channel, message)

    with pytest.raises(paramiko.SSHException, match="window"):
        flood()
    assert len(channel.in_buffer) + len(channel.in_stderr_buffer) <= 3 * 10_000
