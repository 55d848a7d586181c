"""rsync over the connection that is open already: its remote shell is our bridge."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

from orchestrator.errors import HostError
from orchestrator.manifest import Manifest
from orchestrator.transport import Channel, Link

_BRIDGE = Path(__file__).with_name("bridge.py")
_STALLED = 120  # seconds without a byte after which rsync gives up
_LAST_WORDS = 5.0
_READ = 262144
_NOT_FOUND = 127


class NoRsyncError(Exception):
    """The far end has none."""


@cache
def here() -> str | None:
    """A usable rsync on this machine: openrsync (macOS) lacks what we need."""
    found = shutil.which("rsync")
    if found is None:
        return None
    done = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    first = done.stdout.partition("\n")[0]
    words = first.split()
    usable = first.startswith("rsync  version") and words[2].split(".")[0] >= "3"
    return found if usable else None


def send(host: str, link: Link, root: Path, manifest: Manifest, *, incoming: str, base: str) -> int:
    """Fill `incoming` on the host, taking from `base` what is alike; return the bytes that crossed.

    Raise `NoRsyncError`, or HostError when rsync failed.
    """
    program = here()
    assert program is not None
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="orch-"))  # 0700, and short: a socket's path has 108 bytes
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        names = folder / "names"
        names.write_bytes(b"".join(os.fsencode(entry.path) + b"\0" for entry in manifest.entries))
        door = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        door.bind(str(folder / "s"))
        door.listen(1)
        argv = _argv(program, folder / "s", root, incoming, base)
        stdin = stack.enter_context(names.open("rb"))
        said = stack.enter_context((folder / "said").open("w+b"))
        process = subprocess.Popen(argv, stdin=stdin, stdout=subprocess.DEVNULL, stderr=said)
        stack.callback(process.wait)
        stack.callback(process.kill)
        bridge = _Bridge(link, door)
        bridge.run_until(process)
        code = process.wait()
        if code == 0:
            return bridge.sent
        said.seek(0)
        raise bridge.failure(host, code, said.read().decode("utf-8", "replace"))


def _argv(program: str, sock: Path, root: Path, incoming: str, base: str) -> list[str]:
    shell = " ".join(_word(word) for word in (sys.executable, "-S", "-E", str(_BRIDGE), str(sock)))
    return [
        program,
        "-s",  # arguments travel in the protocol, past the far end's shell
        f"--rsh={shell}",
        "--links",
        "--perms",
        "--times",
        "--chmod=D755,Fu=rwX,Fgo=rX",  # the two modes a manifest knows
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


class _Bridge:
    """Joins the bridge's socket to a channel of the connection."""

    def __init__(self, link: Link, door: socket.socket) -> None:
        self._link = link
        self._door = door
        self.sent = 0
        self._channel: Channel | None = None
        self._error: HostError | None = None

    def run_until(self, process: subprocess.Popen[bytes]) -> None:
        """Serve the one connection that rsync makes; return when it is over."""
        sock = self._accept(process)
        if sock is None:
            return
        with sock:
            try:
                self._channel = self._link.open(_command(sock))
            except HostError as error:
                self._error = error
                return
            up = threading.Thread(target=self._up, args=(sock, self._channel), daemon=True)
            up.start()
            self._down(sock, self._channel)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            up.join()

    def _accept(self, process: subprocess.Popen[bytes]) -> socket.socket | None:
        """The bridge's connection; None when rsync ended without making one."""
        self._door.settimeout(0.2)
        while True:
            try:
                sock = self._door.accept()[0]
            except TimeoutError:
                if process.poll() is not None:
                    return None
                continue
            sock.settimeout(None)
            return sock

    def _up(self, sock: socket.socket, channel: Channel) -> None:
        try:
            while data := sock.recv(_READ):
                channel.send(data)
                self.sent += len(data)
            channel.send_eof()
        except (OSError, HostError):
            channel.close()

    def _down(self, sock: socket.socket, channel: Channel) -> None:
        with contextlib.suppress(OSError):
            while data := channel.recv(_READ):
                sock.sendall(data)

    def failure(self, host: str, code: int, said: str) -> Exception:
        """What to raise when rsync ended with `code`."""
        if self._error:
            return self._error
        status = self._channel.wait(_LAST_WORDS) if self._channel else None
        remote = self._channel.stderr_tail().decode("utf-8", "replace") if self._channel else ""
        if status == _NOT_FOUND:
            return NoRsyncError()
        if status == -1:
            return HostError(
                host,
                "was lost",
                kind="lost",
                why="the connection ended while the code was sent",
                hint="is the machine up, and the network?",
            )
        lines = [line.strip() for line in (said + remote).splitlines() if line.strip()]
        return HostError(
            host,
            "did not take the code",
            kind="rsync",
            why=f"rsync: {_telling(lines) or f'exit {code}'}",
            hint="look at the disk and the workdir there",
        )


def _telling(lines: list[str]) -> str:
    """The line that says why: the first with a cause, not rsync's closing words."""
    closing = ("rsync error:", "rsync: connection unexpectedly closed", "sent ", "total size")
    causes = [line.removeprefix("rsync: ") for line in lines if not line.startswith(closing)]
    return (causes or [*lines, ""])[0]


def _command(sock: socket.socket) -> list[str]:
    """The bridge's first line: the words of the remote command, in hex."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = sock.recv(1)
        if not byte:
            break
        line += byte
    return [bytes.fromhex(word).decode("utf-8", "surrogateescape") for word in line.decode().split()]
