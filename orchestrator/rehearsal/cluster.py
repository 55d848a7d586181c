"""`Cluster`: N hosts on this machine, reached through real sshd's, without a trace afterwards."""

import json
import os
import pwd
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from pathlib import Path
from typing import Self

from orchestrator.errors import ClusterError
from orchestrator.model import Host
from orchestrator.text import endpoint

_WATCHER = Path(__file__).with_name("watcher.py")
# Without the modules of this package, which are slow to import.
_WATCH = (
    "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[2], run_name='__main__')"
)
_START_TIMEOUT = 30.0
_TRIES = 5  # another process can take a free port before sshd has it


@dataclass(frozen=True)
class SshServer:
    """One sshd to be started; everything it reads is in `folder`."""

    folder: Path
    address: str
    port: int
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> list[str]:
        return [binary(), "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.folder / "sshd.log")]

    @property
    def known_hosts(self) -> str:
        """Return the known_hosts line for its address."""
        public = (self.folder / "host_key.pub").read_text(encoding="ascii").strip()
        return f"[{self.address}]:{self.port} {public}\n"

    def log(self) -> str:
        file = self.folder / "sshd.log"
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""

    def complaint(self) -> str:
        """Return its own message about why it does not listen; "" if there is none."""
        lines = self.log().splitlines()
        return next(
            (line for line in lines if "Cannot bind" in line or "fatal" in line or "failed" in line), ""
        )


@cache
def binary() -> str:
    """Return the absolute path of sshd, which it requires to start."""
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin")
    if program is None:
        raise ClusterError(
            "the embedded cluster needs an SSH server",
            why="sshd is not installed here",
            hint="`apt install openssh-server`",
        )
    return program


def write_key(path: Path) -> None:
    """Write a new ed25519 key pair: `path` (0600) and `path`.pub."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True)


def write(server: SshServer, authorized_keys: Path) -> None:
    """Write the server's folder: host key and configuration."""
    server.folder.mkdir(mode=0o700, parents=True)
    write_key(server.folder / "host_key")
    settings = {
        "HostKey": f'"{server.folder}/host_key"',
        "AuthorizedKeysFile": f'"{authorized_keys}"',
        "PidFile": "none",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "StrictModes": "no",  # the folder may be in a world-writable /tmp
        "MaxStartups": "1000:30:1000",
        "MaxSessions": "100",
        "PrintMotd": "no",
        "UseDNS": "no",
        **({"UsePAM": "yes"} if os.geteuid() == 0 else {}),  # without it a locked account is refused
        # All hosts share one source address.
        **({"PerSourcePenalties": "no"} if _penalizes() else {}),
        **server.options,
    }
    lines = [f"ListenAddress {endpoint(server.address, server.port)}"]
    lines += [f"{keyword} {value}" for keyword, value in settings.items()]
    (server.folder / "sshd_config").write_text("\n".join(lines) + "\n", encoding="utf-8")


@cache
def _penalizes() -> bool:
    """Return True if this sshd, from 9.8 on, penalizes sources of failed logins."""
    argv = [binary(), "-T", "-f", "/dev/null", "-h", "/dev/null", "-o", "PerSourcePenalties=no"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return "Bad configuration option" not in done.stderr


def free_ports(count: int) -> list[int]:
    """Return ports that are free now; all are held until all are found, so they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


@dataclass(eq=False)
class Cluster:
    """A context manager; `hosts` are its entries, as in an inventory of real machines.

    Each host has an sshd, whose logins have an empty $HOME of their own: no startup files, no caches.
    `options` are further sshd settings. On exit, or when this process ends in any way, everything that ever
    ran below the sshd's is killed and the folder is removed.
    """

    count: int
    _: KW_ONLY
    python: str = sys.executable
    name: str = "rehearsal"
    options: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path()
    servers: tuple[SshServer, ...] = ()
    hosts: tuple[Host, ...] = ()
    _watcher: subprocess.Popen[bytes] | None = None
    _ports: ExitStack = field(default_factory=ExitStack)  # held for the tasks

    @property
    def ssh_config(self) -> Path:
        """Return aliases, known hosts and the key: what the entries refer to, and the file for `ssh -F`."""
        return self.folder / "ssh_config"

    @property
    def watcher(self) -> int | None:
        """Return the process that is the parent of everything else."""
        return self._watcher.pid if self._watcher else None

    @property
    def identity(self) -> Path:
        return self.folder / "identity"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def __enter__(self) -> Self:
        if os.geteuid() == 0:  # sshd's folder for privilege separation
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for _ in range(_TRIES):
            self.folder = Path(tempfile.mkdtemp(prefix="orchestrate-rehearsal-")).resolve()
            try:
                self._write()
                self._start()
                if self._listening():
                    return self
            except BaseException:
                self.close()
                raise
            complaint = next(filter(None, (server.complaint() for server in self.servers)), "")
            self.close()
        raise ClusterError(
            "the embedded cluster did not start",
            why=complaint or "its sshd's do not listen",
            hint=f"`{binary()} -D -e -p 2222` by hand shows more",
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything; returns when nothing is left. Idempotent."""
        if self._watcher:
            assert self._watcher.stdin is not None
            assert self._watcher.stdout is not None
            with suppress(BrokenPipeError):
                self._watcher.stdin.write(b"done\n")
                self._watcher.stdin.close()
            self._watcher.wait()
            self._watcher.stdout.close()
            self._watcher = None
        self._ports.close()
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- creating it ---

    def _write(self) -> None:
        write_key(self.identity)
        keys = self.folder / "authorized_keys"
        keys.write_bytes(Path(f"{self.identity}.pub").read_bytes())
        servers = []
        ports = free_ports(self.count)
        for number, port in enumerate(ports):
            home = self.folder / f"home-{number + 1}"
            home.mkdir(mode=0o700)
            options = {"SetEnv": f'"HOME={home}"', **self.options}
            # No other cluster has the same: a launch waits for others on the same hosts.
            first = ports[number - number % 250]
            address = f"127.{first >> 8}.{first & 255}.{number % 250 + 2}"
            servers.append(SshServer(self.folder / f"sshd-{number + 1}", address, port, options))
            write(servers[-1], keys)
        self.servers = tuple(servers)
        self.known_hosts.write_text("".join(server.known_hosts for server in self.servers), encoding="ascii")
        self.hosts = self._entries()
        self.ssh_config.write_text(self._ssh_config(), encoding="utf-8")
        self.ssh_config.chmod(0o600)  # whatever the umask is: others must not be able to write it

    def _entries(self) -> tuple[Host, ...]:
        width = max(2, len(str(self.count)))
        ports = task_ports(self.count, self._ports)
        entries = []
        for number, (server, task_port) in enumerate(zip(self.servers, ports, strict=True), start=1):
            name = f"{self.name}-{number:0{width}}"
            home = self.folder / "hosts" / name
            temporary = home / "tmp"  # TensorFlow leaves files there when it is killed
            temporary.mkdir(mode=0o700, parents=True)
            entries.append(
                Host(
                    name=name,
                    ssh=name,
                    ssh_config=str(self.ssh_config),
                    address=server.address,
                    python=self.python,
                    agent_python=sys.executable,
                    workdir=str(home / "work"),
                    state=str(home / "state"),
                    task_port=task_port,
                    env={"TMPDIR": str(temporary)},
                )
            )
        return tuple(entries)

    def _ssh_config(self) -> str:
        entries = [
            f"Host {host.ssh}\n    HostName {server.address}\n    Port {server.port}\n"
            for host, server in zip(self.hosts, self.servers, strict=True)
        ]
        common = (
            f"Host {self.name}-*\n    User {pwd.getpwuid(os.getuid()).pw_name}\n"
            f'    IdentityFile "{self.identity}"\n    UserKnownHostsFile "{self.known_hosts}"\n'
            "    IdentitiesOnly yes\n    IdentityAgent none\n"
            "    GlobalKnownHostsFile /dev/null\n    StrictHostKeyChecking yes\n"
        )
        return "".join([*entries, common])

    # --- starting it ---

    def _start(self) -> None:
        order = {"folder": str(self.folder), "commands": [server.argv for server in self.servers]}
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCH, str(_WATCHER.parents[2]), str(_WATCHER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._watcher.stdin is not None
        assert self._watcher.stdout is not None
        self._watcher.stdin.write(json.dumps(order).encode() + b"\n")
        self._watcher.stdin.flush()
        self._watcher.stdout.readline()

    def _listening(self) -> bool:
        """Return True once all servers listen, according to their logs; False as soon as one has given up.

        It does not connect: another process on the port would accept that.
        """
        deadline = time.monotonic() + _START_TIMEOUT
        for server in self.servers:
            while "Server listening on" not in server.log():
                if time.monotonic() > deadline or server.complaint():
                    return False
                time.sleep(0.005)
        return True


ROOM = 8  # ports of a host: it may have as many tasks, and the next host is another
_BASES = range(15000, 32000, ROOM)  # below the ephemeral range of Linux


def task_ports(count: int, held: ExitStack) -> list[int]:
    """Return the first port of each host; this process reserves them until `held` is closed."""
    first: list[int] = []
    for port in random.sample(_BASES, len(_BASES)):
        if len(first) == count:
            return first
        claim = socket.socket(socket.AF_UNIX)
        try:
            with socket.socket() as sock:
                sock.bind(("", port))  # on every address
            claim.bind(f"\0orchestrate/rehearsal/{port}")  # no file: it ends with this process
        except OSError:  # another cluster's tasks may bind it at any time
            claim.close()
            continue
        held.enter_context(claim)
        first.append(port)
    raise ClusterError(f"there are no ports for the tasks of {count} hosts", hint="use fewer hosts")
