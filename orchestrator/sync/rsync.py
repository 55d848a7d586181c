"""rsync over the existing connection: its remote shell is our bridge.

Everything goes through descriptors that rsync and the bridge inherit, so a killed process leaves no files.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from functools import cache
from io import FileIO
from pathlib import Path

from orchestrator.errors import HostError
from orchestrator.node.base.descriptors import write_all
from orchestrator.transport import Channel, Link
from orchestrator.wire import printable

_BRIDGE = Path(__file__).with_name("bridge.py")
_STALLED = 60  # seconds without a byte after which rsync gives up
_LAST_WORDS = 5.0
_READ = 262144
_NOT_FOUND = 127
_NETWORK = "check that the machine is up, and the network"
# Output of rsync that does not name a cause.
_CLOSING = ("rsync error:", "rsync: connection unexpectedly closed", "sent ", "total size")
_MOST_WORDS = 1 << 16  # bytes


class NoRsyncError(Exception):
    """The remote end has no rsync."""


@cache
def here() -> str | None:
    """Return a usable rsync on this machine; None if there is none.

    openrsync (macOS) lacks what we need. Before 3.4 a malicious remote end can take over ours
    (CVE-2024-12084 to 12087). In both cases the agent receives everything instead.
    """
    program = shutil.which("rsync")
    if program is None:
        return None
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    first = done.stdout.partition("\n")[0]
    version = re.match(r"rsync  version v?([0-9]+)\.([0-9]+)", first)
    return program if version and (int(version[1]), int(version[2])) >= (3, 4) else None


def send(host: str, link: Link, root: Path, paths: Iterable[str], *, incoming: str, base: str) -> int:
    """Send these files into `incoming` on the host, as changes to those in `base`; return the bytes sent.

    Raise `NoRsyncError`, or HostError if rsync failed.
    """
    program = here()
    assert program is not None
    output, channel, sent = bytearray(), None, 0
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(tempfile.TemporaryFile())
        names.write(b"".join(os.fsencode(path) + b"\0" for path in paths))
        names.seek(0)
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        with theirs:
            process = stack.enter_context(
                subprocess.Popen(
                    _argv(program, theirs.fileno(), root, incoming, base),
                    stdin=names,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=[theirs.fileno()],
                )
            )

        def listen() -> None:
            """Keep the beginning of rsync's output: the remote end may produce endless output."""
            assert process.stderr is not None
            while data := os.read(process.stderr.fileno(), _READ):
                output.extend(data[: max(0, _MOST_WORDS - len(output))])

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        stack.callback(listener.join)
        stack.callback(process.kill)
        command, pipes, _, _ = socket.recv_fds(ours, _MOST_WORDS, 2)
        if pipes:
            with os.fdopen(pipes[0], "rb", 0) as source, os.fdopen(pipes[1], "wb", 0) as target:
                channel = link.open(command.decode("utf-8", "surrogateescape").split("\0"))
                sent = _join(channel, source, target, ours)
        code = process.wait()
    if code:
        raise _failure(host, code, channel, output.decode("utf-8", "replace"))
    return sent


def _join(channel: Channel, source: FileIO, target: FileIO, bridge: socket.socket) -> int:
    """Copy bytes in both directions until the remote end has finished; return how many were sent."""
    sent = 0

    def up() -> None:
        nonlocal sent
        try:
            while data := source.read(_READ):
                channel.send(data)
                sent += len(data)
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
    bridge.close()  # it receives the end of input, and rsync ends
    # The remote end is gone: what waits for its window would wait forever.
    sender.join(_LAST_WORDS)
    channel.wait(_LAST_WORDS)
    channel.close()
    sender.join()
    return sent


def _argv(program: str, fd: int, root: Path, incoming: str, base: str) -> list[str]:
    argv = [sys.executable, "-S", "-E", str(_BRIDGE), str(fd)]
    shell = " ".join("'" + word.replace("'", "''") + "'" for word in argv)  # quotes as rsync reads them
    return [
        program,
        "-s",  # arguments travel inside the protocol instead of through the remote shell
        f"--rsh={shell}",
        "--links",
        "--perms",
        "--times",
        "--chmod=D755,Fu=rwX,Fgo=rX",  # the two modes in a manifest
        "--sparse",
        "--ignore-times",  # otherwise an identical file would not be sent at all
        f"--timeout={_STALLED}",
        f"--link-dest={base}",
        "--from0",
        "--files-from=-",
        f"{root}/",
        f"x:{incoming}/",
    ]


def _failure(host: str, code: int, channel: Channel | None, output: str) -> Exception:
    """Return the error to raise when rsync ended with `code`."""
    status = channel.wait(_LAST_WORDS) if channel else None
    if status == _NOT_FOUND:
        return NoRsyncError()
    if status == -1:
        return HostError(
            host, "was lost", kind="lost", why="the connection ended while the code was sent", hint=_NETWORK
        )
    remote = channel.stderr_tail().decode("utf-8", "replace") if channel else ""
    lines = [line.strip() for line in (output + remote).splitlines() if line.strip()]
    causes = [line.removeprefix("rsync: ") for line in lines if not line.startswith(_CLOSING)]
    why = f"rsync: {printable((causes or [*lines, f'exit {code}'])[0])}"
    return HostError(
        host, "did not accept the code", kind="rsync", why=why, hint="look at the disk and the workdir there"
    )
