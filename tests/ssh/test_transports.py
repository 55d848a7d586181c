"""The contract of every transport: paramiko, the pipes of a client, and this machine."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.connectors import Connectors
from orchestrator.errors import HostError
from orchestrator.model import LOCAL, Host, Way
from orchestrator.rehearsal import Cluster
from orchestrator.sync import rsync
from orchestrator.transport import Channel, Connector, Link
from tests.polling import poll

# Replaces srun: it accepts the options that we pass, and runs the rest as a job step would.
SRUN = """#!/bin/sh
[ "$1 $2 $3 $4 $5" = "--overlap --jobid=7 -N1 -n1 -w" ] || exit 64
shift 6
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""
WAYS: dict[str, dict[str, Any]] = {
    "paramiko": {"via": Way.PARAMIKO},
    "openssh": {"via": Way.OPENSSH},
    "srun": {"via": Way.SRUN},
    "command": {"via": ("env", "FAR={host}", "sh", "-c")},
    "local": {"ssh": LOCAL},
}


@pytest.fixture(params=WAYS)
def host(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Host:
    if request.param == "srun":
        (tmp_path / "srun").write_text(SRUN)
        (tmp_path / "srun").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_JOB_ID", "7")
    return replace(cluster.hosts[0], **WAYS[request.param])


@pytest.fixture
def connector() -> Iterator[Connector]:
    opened = Connectors()
    yield opened
    opened.close()


@pytest.fixture
def link(connector: Connector, host: Host) -> Iterator[Link]:
    opened = connector.connect(host, 20)
    yield opened
    opened.close()


def read_all(channel: Channel) -> bytes:
    return b"".join(iter(lambda: channel.recv(65536), b""))


def run(link: Link, *argv: str) -> tuple[bytes, int | None]:
    channel = link.open(argv)
    return read_all(channel), channel.wait(10)


def test_a_command_returns_output_and_status(link: Link) -> None:
    words = ["a b", "$HOME", "'\"\\!*", "\u00e4"]
    answer, status = run(link, sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(3)", *words)
    assert (answer.decode(), status) == (f"{words}\n", 3)


def test_bytes_pass_unchanged_both_ways_until_the_end_of_stdin(link: Link) -> None:
    data = bytes(range(256)) * 20_000
    channel = link.open(["cat"])

    def send() -> None:
        channel.send(data)
        channel.send_eof()

    sender = threading.Thread(target=send)
    sender.start()
    assert read_all(channel) == data
    sender.join()
    assert channel.wait(10) == 0


def test_a_million_lines_arrive_despite_a_stderr_flood_whose_tail_is_kept(link: Link) -> None:
    code = (
        "import sys\nsys.stderr.write('x' * 10_000_000)\n"  # more than a window, before any stdout
        "for part in range(100):\n    sys.stderr.write('x' * 100_000)\n"
        "    print('a line\\n' * 10_000, end='')\nsys.stderr.write('the end')"
    )
    answer, status = run(link, sys.executable, "-c", code)
    assert (answer.count(b"\n"), status) == (1_000_000, 0)
    channel = link.open([sys.executable, "-c", code])
    read_all(channel)
    assert channel.wait(10) == 0
    assert len(channel.stderr_tail()) == 4096
    assert channel.stderr_tail().endswith(b"the end")


def a_line(channel: Channel) -> bytes:
    """Read the next line, in any number of pieces."""
    line = b""
    while not line.endswith(b"\n"):
        line += channel.recv(1)
    return line.strip()


def test_a_killed_remote_process_ends_the_stream(link: Link) -> None:
    code = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read(1); os.kill(os.getpid(), 9)"
    channel = link.open([sys.executable, "-c", code])
    assert a_line(channel).isdigit()
    channel.send(b"x")  # not earlier: srun drops data it has not passed on
    assert read_all(channel) == b""
    assert channel.wait(10) not in (None, 0)


@pytest.mark.parametrize("end", ["channel", "link"])
def test_closing_wakes_a_reader_and_a_sender_and_leaves_nothing(
    connector: Connector, host: Host, end: str
) -> None:
    link = connector.connect(host, 20)
    code = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read(1)"
    channel = link.open([sys.executable, "-c", code])
    pid = int(a_line(channel))
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(channel.recv, 10)
        (channel if end == "channel" else link).close()
        assert rest.result(timeout=5) == b""
    assert poll(lambda: not Path(f"/proc/{pid}").exists(), 10)
    with pytest.raises(HostError) as sent:
        channel.send(b"x" * 100_000)
    assert sent.value.kind == "lost"
    link.close()
    with pytest.raises(HostError):
        link.open(["true"])


@pytest.mark.usefixtures("usable_rsync")
def test_rsync_works_over_the_transport(link: Link, host: Host, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "big").write_bytes(os.urandom(3_000_000))
    base, to = tmp_path / "base", tmp_path / "to"
    for folder in (base, to):
        folder.mkdir()
    (base / "big").write_bytes((tmp_path / "from" / "big").read_bytes()[:-1] + b"x")
    sent = rsync.send(host.name, link, tmp_path / "from", ["big"], incoming=str(to), base=str(base))
    assert sent < 1_000_000
    assert (tmp_path / "to" / "big").read_bytes() == (tmp_path / "from" / "big").read_bytes()


@pytest.mark.parametrize("host", [way for way in WAYS if way != "paramiko"], indirect=True)
def test_a_killed_client_ends_the_stream_and_the_remote_process(link: Link) -> None:
    channel = link.open([sys.executable, "-c", "import os; print(os.getpid(), flush=True); input()"])
    pid = int(a_line(channel))
    os.killpg(channel._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    assert channel.recv(20) == b""
    link.close()
    assert poll(lambda: not Path(f"/proc/{pid}").exists(), 10)
