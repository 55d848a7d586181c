"""`Cluster`: N hosts on this machine, reached through real sshd's, gone without a trace at the end."""

from __future__ import annotations

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
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from orchestrator.errors import ClusterError
from orchestrator.model import Host
from orchestrator.node.base import turnstile
from orchestrator.rehearsal import sshd
from orchestrator.rehearsal.sshd import SshServer

_WATCHER = Path(__file__).with_name("watcher.py")
# Without the modules of this package, which take long to import.
_WATCH = (
    "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[2], run_name='__main__')"
)
_START_TIMEOUT = 30.0
_TRIES = 5  # a free port can be taken by somebody else before sshd has it


class Cluster:
    """A context manager; `hosts` are its entries, as an inventory of real machines would have them.

    `servers` sshd's share the hosts out (default: one each; at most 16 hosts to one). With `homes`
    every sshd gives its logins an empty $HOME of their own: no rc files, no caches. `options` are
    further sshd settings. Leaving it, or the end of this process however it comes, kills everything
    that ever ran below the sshd's and removes the folder.
    """

    def __init__(
        self,
        count: int,
        *,
        servers: int | None = None,
        python: str = sys.executable,
        name: str = "rehearsal",
        options: Mapping[str, str] | None = None,
        homes: bool = False,
        parent: Path | None = None,
    ) -> None:
        self._parts = max(servers or count, -(-count // 16))
        self._count = count
        self._python = python
        self._name = name
        self._options = dict(options or {})
        self._homes = homes
        self._parent = parent
        self._watcher: subprocess.Popen[bytes] | None = None
        self._task_ports: TaskPorts | None = None
        self.folder = Path()
        self.servers: tuple[SshServer, ...] = ()
        self.hosts: tuple[Host, ...] = ()

    @property
    def ssh_config(self) -> Path:
        """Aliases, known hosts, the key: what the entries name, and what `ssh -F` takes."""
        return self.folder / "ssh_config"

    @property
    def watcher(self) -> int | None:
        """The process that everything else is below."""
        return self._watcher.pid if self._watcher else None

    @property
    def identity(self) -> Path:
        return self.folder / "identity"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def __enter__(self) -> Self:
        sshd.prepare_machine()
        for _ in range(_TRIES):
            self.folder = Path(tempfile.mkdtemp(prefix="orchestrate-rehearsal-", dir=self._parent)).resolve()
            try:
                self._write()
                self._start()
                if self._listening():
                    return self
            except BaseException:
                self.close()
                raise
            said = next(filter(None, (server.complaint() for server in self.servers)), "")
            self.close()
        raise ClusterError(
            "the embedded cluster did not start",
            why=said or "its sshd's do not listen",
            hint=f"`{sshd.binary()} -D -e -p 2222` by hand shows more",
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        if self._task_ports:
            self._task_ports.close()
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- making it ---

    def _write(self) -> None:
        sshd.write_key(self.identity, self._name)
        keys = self.folder / "authorized_keys"
        keys.write_bytes(Path(f"{self.identity}.pub").read_bytes())
        addresses = [f"127.0.{number // 250}.{number % 250 + 2}" for number in range(self._count)]
        ports = sshd.free_ports(self._parts)
        servers = []
        for number, port in enumerate(ports):
            options = self._options
            if self._homes:
                home = self.folder / f"home-{number + 1}"
                home.mkdir(mode=0o700)
                options = {"SetEnv": f"HOME={home}", **options}
            share = tuple(addresses[number :: self._parts])
            servers.append(SshServer(self.folder / f"sshd-{number + 1}", share, port, options))
            sshd.write(servers[-1], keys)
        self.servers = tuple(servers)
        self.known_hosts.write_text("".join(server.known_hosts for server in self.servers), encoding="ascii")
        self.hosts = self._entries()
        self.ssh_config.write_text(self._ssh_config(), encoding="utf-8")

    @property
    def _doors(self) -> list[tuple[str, int]]:
        return [(address, server.port) for server in self.servers for address in server.addresses]

    def _entries(self) -> tuple[Host, ...]:
        width = max(2, len(str(self._count)))
        self._task_ports = TaskPorts(self._count)
        entries = []
        for number, ((address, _), task_port) in enumerate(
            zip(self._doors, self._task_ports.first, strict=True), start=1
        ):
            name = f"{self._name}-{number:0{width}}"
            home = self.folder / "hosts" / name
            temporary = home / "tmp"  # TensorFlow leaves files there when it is killed
            temporary.mkdir(mode=0o700, parents=True)
            entries.append(
                Host(
                    name=name,
                    ssh=name,
                    ssh_config=str(self.ssh_config),
                    address=address,
                    python=self._python,
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
            f"Host {host.ssh}\n    HostName {address}\n    Port {port}\n"
            for host, (address, port) in zip(self.hosts, self._doors, strict=True)
        ]
        common = (
            f"Host {self._name}-*\n    User {pwd.getpwuid(os.getuid()).pw_name}\n"
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
        """Return True once all servers listen, as their logs say; False as soon as one has given up.

        Not by connecting: whatever else has the port would answer that.
        """
        deadline = time.monotonic() + _START_TIMEOUT
        for server in self.servers:
            while server.log().count("Server listening on") < len(server.addresses):
                if time.monotonic() > deadline or server.complaint():
                    return False
                time.sleep(0.005)
        return True


ROOM = 8  # ports of a host: it may have as many tasks, and its neighbour is another one
_BASES = range(15000, 32000, ROOM)  # below the ephemeral range of Linux
_KIND = "rehearsal"


class TaskPorts:
    """The first port of each host; they are held until `close`, by this process and nobody else."""

    def __init__(self, count: int) -> None:
        self.first: list[int] = []
        self._held: list[int] = []
        for port in random.sample(_BASES, len(_BASES)):
            if len(self.first) == count:
                return
            try:
                with socket.socket() as sock:
                    sock.bind(("", port))  # on every address
                self._held.append(turnstile.pass_through(_KIND, port))
            except (OSError, turnstile.Taken):  # another cluster's tasks may bind it at any time
                continue
            self.first.append(port)
        raise ClusterError(f"there are no ports for the tasks of {count} hosts", hint="use fewer hosts")

    def close(self) -> None:
        for one in self._held:
            os.close(one)
        self._held.clear()
