"""Private sshd's: keys, configuration and command lines. Nothing here is started."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from orchestrator.errors import ClusterError
from orchestrator.text import endpoint


@dataclass(frozen=True)
class SshServer:
    """One sshd to be started; everything it reads is in `folder`."""

    folder: Path
    addresses: tuple[str, ...]
    port: int
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> list[str]:
        return [binary(), "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.folder / "sshd.log")]

    @property
    def known_hosts(self) -> str:
        """The lines that make it known under its addresses."""
        public = (self.folder / "host_key.pub").read_text(encoding="ascii").strip()
        return "".join(f"[{address}]:{self.port} {public}\n" for address in self.addresses)

    def log(self) -> str:
        file = self.folder / "sshd.log"
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""

    def complaint(self) -> str:
        """Return why it does not listen, in its own words; "" while nothing is wrong."""
        lines = self.log().splitlines()
        return next(
            (line for line in lines if "Cannot bind" in line or "fatal" in line or "failed" in line), ""
        )


@cache
def binary() -> str:
    """The absolute path of sshd, without which it does not start."""
    found = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin")
    if found is None:
        raise ClusterError(
            "the embedded cluster needs an SSH server",
            why="sshd is not installed here",
            hint="`apt install openssh-server`",
        )
    return found


def write_key(path: Path, comment: str = "") -> None:
    """A fresh ed25519 key pair: `path` (0600) and `path`.pub."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path], check=True)


def write(server: SshServer, authorized_keys: Path) -> None:
    """Make the server's folder: host key and configuration."""
    server.folder.mkdir(mode=0o700, parents=True)
    write_key(server.folder / "host_key")
    settings = {
        "HostKey": f'"{server.folder}/host_key"',
        "AuthorizedKeysFile": f'"{authorized_keys}"',
        "PidFile": "none",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "StrictModes": "no",  # the folder may lie in a world-writable /tmp
        "MaxStartups": "1000:30:1000",
        "MaxSessions": "100",
        "PrintMotd": "no",
        "UseDNS": "no",
        **({"UsePAM": "yes"} if os.geteuid() == 0 else {}),  # without it a locked account is refused
        # All hosts share one source address.
        **({"PerSourcePenalties": "no"} if _knows("PerSourcePenalties=no") else {}),
        **server.options,
    }
    lines = [f"ListenAddress {endpoint(address, server.port)}" for address in server.addresses]
    lines += [f"{keyword} {value}" for keyword, value in settings.items()]
    (server.folder / "sshd_config").write_text("\n".join(lines) + "\n", encoding="utf-8")


@cache
def _knows(option: str) -> bool:
    """Return True if this sshd has an option: those from 9.8 on punish sources that fail to log in."""
    argv = [binary(), "-T", "-f", "/dev/null", "-h", "/dev/null", "-o", option]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return "Bad configuration option" not in done.stderr


def prepare_machine() -> None:
    """Make the privilege separation folder that sshd wants as root."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)


def free_ports(count: int) -> list[int]:
    """Ports that are free now; all are held until all are found, so they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
