"""What there is to know before a host can be connected to, as OpenSSH would see it."""

from __future__ import annotations

import shlex
import socket
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from orchestrator.ssh.algorithms import Algorithms


class Strict(StrEnum):
    """StrictHostKeyChecking, as far as it makes a difference without a person at the prompt."""

    REFUSE = "refuse"  # yes and ask: an unknown key is refused
    ACCEPT_NEW = "accept-new"  # accept-new, no and off: an unknown key is remembered


class Method(StrEnum):
    """A way to log in that this client has, by its name in the protocol."""

    PUBLICKEY = "publickey"
    KEYBOARD = "keyboard-interactive"
    PASSWORD = "password"  # noqa: S105 - the name of the method


@dataclass(frozen=True)
class Deadline:
    """When to give up, and after how long that is."""

    seconds: float
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        return self.began + self.seconds - time.monotonic()

    @property
    def over(self) -> bool:
        return self.left < 0.05


@dataclass(frozen=True)
class Target:
    """One end of a connection; `alias` is what a person would give to `ssh`."""

    alias: str
    hostname: str
    port: int
    user: str
    family: socket.AddressFamily = socket.AF_UNSPEC
    identities: tuple[Path, ...] = ()
    default_identities: bool = True  # nobody chose them: those ssh looks for by itself
    certificates: tuple[Path, ...] = ()
    identities_only: bool = False
    agent: str | None = None  # path of the agent's socket
    known_as: str | None = None  # HostKeyAlias
    user_known_hosts: tuple[Path, ...] = ()
    global_known_hosts: tuple[Path, ...] = ()
    strict: Strict = Strict.REFUSE
    hash_known_hosts: bool = False
    revoked_keys: tuple[Path, ...] = ()
    known_hosts_command: tuple[str, ...] = ()  # its words, but for the tokens that a key fills
    check_ip: bool = False
    trust_localhost: bool = False
    dns_asked: bool = False  # VerifyHostKeyDNS
    algorithms: Algorithms = field(default_factory=Algorithms)
    rsa_bits: int = 1024  # of an RSA key, at least
    methods: tuple[Method, ...] = tuple(Method)
    batch: bool = False  # nobody is asked for anything
    pkcs11: str | None = None
    environment: tuple[tuple[str, str], ...] = ()  # SetEnv
    bind_address: str | None = None
    bind_interface: str | None = None
    attempts: int = 1
    connect_timeout: float | None = None
    config: Path | None = None  # another ssh_config than the user's
    port_asked: bool = False  # the port is the inventory's, not ssh_config's
    proxy_command: str | None = None  # tokens expanded, for /bin/sh
    proxy_passes_fd: bool = False
    jumps: tuple[Target, ...] = ()  # the last one is next to the target

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names under which known_hosts may hold its key, the best first."""
        if self.known_as:
            return (self.known_as.lower(),)
        name = self.hostname.lower()
        return (name,) if self.port == 22 else (f"[{name}]:{self.port}", name)

    @property
    def command(self) -> str:
        """How a person reaches it with OpenSSH, for hints."""
        flags = ["-F", str(self.config)] if self.config else []
        flags += ["-p", str(self.port)] if self.port_asked else []
        return shlex.join(["ssh", *flags, f"{self.user}@{self.alias}"])
