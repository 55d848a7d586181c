"""The link of `ssh = "local"` keeps the promises of an SSH link."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator.connectors import connectors
from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.transport import Channel, Link


@pytest.fixture
def link() -> Iterator[Link]:
    opened = connectors().connect(Host("here", "local", "127.0.0.1"), 1)
    yield opened
    opened.close()


def read_all(channel: Channel) -> bytes:
    return b"".join(iter(lambda: channel.recv(65536), b""))


def test_a_command_answers_and_says_its_status(link: Link) -> None:
    channel = link.open(["sh", "-c", "cat; exit 3"])
    channel.send(b"x" * 50_000)
    channel.send_eof()
    assert read_all(channel) == b"x" * 50_000
    assert channel.wait(10) == 3


def test_stderr_is_drained_and_its_end_kept(link: Link) -> None:
    code = "import sys; sys.stderr.write('x' * 1_000_000 + 'the end'); print('done')"
    channel = link.open([sys.executable, "-c", code])
    assert read_all(channel) == b"done\n"
    assert channel.wait(10) == 0
    assert channel.stderr_tail().endswith(b"the end")


@pytest.mark.parametrize("close", ["channel", "link"])
def test_closing_wakes_a_blocked_reader(link: Link, close: str) -> None:
    channel = link.open(["sh", "-c", "echo up; exec sleep 600"])
    assert channel.recv(10) == b"up\n"
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(channel.recv, 10)
        (channel if close == "channel" else link).close()
        assert rest.result(timeout=5) == b""
    channel.close()


def test_sending_to_a_command_that_is_gone_is_lost(link: Link) -> None:
    channel = link.open(["true"])
    assert channel.wait(10) == 0
    with pytest.raises(HostError) as caught:
        channel.send(b"x" * 1_000_000)
    assert caught.value.kind == "lost"


def test_a_program_that_is_not_there(link: Link) -> None:
    with pytest.raises(HostError) as caught:
        link.open(["~/no/such/program"])
    assert caught.value.kind == "command"
    assert "No such file" in caught.value.why
