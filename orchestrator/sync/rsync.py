"""rsync over the connection that is open already: its remote shell is our bridge.

Everything goes through descriptors that rsync and the bridge inherit: whoever is killed leaves no file.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from functools import cache
from io import FileIO
from pathlib import Path
from typing import IO

from orchestrator.errors import HostError
from orchestrator.node.base.descriptors import write_all
from orchestrator.transport import Channel, Link
from orchestrator.wire import printable

_BRIDGE = Path(__file__).with_name("bridge.py")
_STALLED = 60  # seconds without a byte after which rsync gives up
_LAST_WORDS = 5.0
_READ = 262144
_NOT_FOUND = 127
_MOST_WORDS = 1 << 16  # bytes


class NoRsyncError(Exception):
    """The far end has none."""


@cache
def here() -> str | None:
    """Find a usable rsync on this machine.

    openrsync (macOS) lacks what we need; below 3.4 a far end that lies can take over ours (CVE-2024-12084 to
    12087), and there the agent takes everything.
    """
    found = shutil.which("rsync")
    if found is None:
        return None
    done = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    first = done.stdout.partition("\n")[0]
    version = re.match(r"rsync  version v?([0-9]+)\.([0-9]+)", first)
    return found if version and (int(version[1]), int(version[2])) >= (3, 4) else None


def send(
    host: str,
    link: Link,
    root: Path,
    paths: Iterable[str],
    *,
    incoming: str,
    base: str,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> int:
    """Bring these files into `incoming` on the host, as changes to those in `base`; return the bytes sent.

    Raise `NoRsyncError`, or HostError when rsync failed.
    """
    program = here()
    assert program is not None
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(tempfile.TemporaryFile())
        names.write(b"".join(os.fsencode(path) + b"\0" for path in paths))
        names.seek(0)
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        with theirs:
            process = subprocess.Popen(
                _argv(program, theirs.fileno(), root, incoming, base),
                stdin=names,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )
        words, channel, sent = _Words(process.stderr), None, 0
        stack.callback(words.close)
        stack.callback(process.wait)
        stack.callback(process.kill)
        command, pipes, _, _ = socket.recv_fds(ours, _MOST_WORDS, 2)
        if pipes:
            with os.fdopen(pipes[0], "rb", 0) as source, os.fdopen(pipes[1], "wb", 0) as target:
                channel = link.open(command.decode("utf-8", "surrogateescape").split("\0"))
                sent = _join(channel, source, target, ours, on_bytes)
        code = process.wait()
        if code == 0:
            return sent
        raise _failure(host, code, channel, words.close())


def _join(
    channel: Channel, source: FileIO, target: FileIO, bridge: socket.socket, on_bytes: Callable[[int], object]
) -> int:
    """Carry bytes both ways until the far end has no more to say; return how many went there."""
    sent = 0

    def up() -> None:
        nonlocal sent
        try:
            while data := source.read(_READ):
                channel.send(data)
                sent += len(data)
                on_bytes(len(data))
            channel.send_eof()
        except (OSError, HostError):
            channel.close()

    for file in (source, target):
        os.set_blocking(file.fileno(), True)
    sender = threading.Thread(target=up, daemon=True)
    sender.start()
    with contextlib.suppress(OSError):
        while data := channel.recv(_READ):
            write_all(target.fileno(), data)
    target.close()
    bridge.close()  # it sees the end, and with it rsync
    # The far end is gone: what still waits for room in its window would wait for ever.
    sender.join(_LAST_WORDS)
    channel.wait(_LAST_WORDS)
    channel.close()
    sender.join()
    return sent


def _argv(program: str, fd: int, root: Path, incoming: str, base: str) -> list[str]:
    shell = " ".join(_word(word) for word in (sys.executable, "-S", "-E", str(_BRIDGE), str(fd)))
    return [
        program,
        "-s",  # arguments travel in the protocol, past the far end's shell
        f"--rsh={shell}",
        "--links",
        "--perms",
        "--times",
        "--chmod=D755,Fu=rwX,Fgo=rX",  # the two modes a manifest knows
        "--sparse",
        "--ignore-times",  # a file that was the same would not be sent at all
        f"--timeout={_STALLED}",
        f"--link-dest={base}",
        "--from0",
        "--files-from=-",
        f"{root}/",
        f"x:{incoming}/",
    ]


def _word(text: str) -> str:
    """A word of --rsh: rsync knows quotes, doubled inside themselves."""
    return "'" + text.replace("'", "''") + "'"


class _Words:
    """The beginning of rsync's words. The far end may have it say whatever it likes, without end."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._stream = stream
        self._kept = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError):  # closed
            while data := os.read(self._stream.fileno(), _READ):
                self._kept += data[: max(0, _MOST_WORDS - len(self._kept))]

    def close(self) -> str:
        """All of it, once rsync has ended."""
        self._reader.join(_LAST_WORDS)
        self._stream.close()
        return self._kept.decode("utf-8", "replace")


def _failure(host: str, code: int, channel: Channel | None, said: str) -> Exception:
    """Return what to raise when rsync ended with `code`."""
    status = channel.wait(_LAST_WORDS) if channel else None
    remote = channel.stderr_tail().decode("utf-8", "replace") if channel else ""
    if status == _NOT_FOUND:
        return NoRsyncError()
    if status == -1:
        return HostError(
            host,
            "was lost",
            kind="lost",
            why="the connection ended while the code was sent",
            hint="check that the machine is up, and the network",
        )
    lines = [line.strip() for line in (said + remote).splitlines() if line.strip()]
    return HostError(
        host,
        "did not take the code",
        kind="rsync",
        why=f"rsync: {printable(_telling(lines)) or f'exit {code}'}",
        hint="look at the disk and the workdir there",
    )


def _telling(lines: list[str]) -> str:
    """The line that says why: the first with a cause, not rsync's closing words."""
    closing = ("rsync error:", "rsync: connection unexpectedly closed", "sent ", "total size")
    causes = [line.removeprefix("rsync: ") for line in lines if not line.startswith(closing)]
    return (causes or [*lines, ""])[0]
