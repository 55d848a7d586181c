"""From a host entry to a `Target`: what ssh_config says of a name, asked of `ssh -G`."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from orchestrator.errors import HereError, HostError
from orchestrator.model import Host


def reason(error: BaseException) -> str:
    """Return an exception in words: the system's text, else its own, else the name of its class."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


Options: TypeAlias = Mapping[str, Sequence[str]]  # lower-case keyword -> its values

_FRESH = 20.0  # seconds an answer is good for: from the question for passphrases to the connection
_PATIENCE = 20.0  # seconds for `ssh -G`, which may run a `Match exec`
_DEFAULT_IDENTITIES = ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk", "dsa", "xmss")
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
_NO = frozenset({"", "no", "false"})
# Keywords that paramiko cannot follow, with the values at which they ask for nothing.
_BEYOND: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        ("KnownHostsCommand", "RevokedHostKeys", "CertificateFile", "PKCS11Provider", "ProxyCommand",
         "BindAddress", "BindInterface", "SetEnv", "RefuseConnection"), frozenset({"", "none"})
    ),
    **dict.fromkeys(("VerifyHostKeyDNS", "NoHostAuthenticationForLocalhost", "HostbasedAuthentication"), _NO),
    "PubkeyAuthentication": frozenset({"", "yes", "true", "unbound", "host-bound"}),
}  # fmt: skip


class BadConfigError(Exception):
    """ssh_config cannot be read; the text says where and why."""


class Algorithms(NamedTuple):
    """The algorithms that ssh_config allows, by their kind; an empty tuple allows what the client has."""

    kex: tuple[str, ...] = ()
    ciphers: tuple[str, ...] = ()
    macs: tuple[str, ...] = ()
    host_keys: tuple[str, ...] = ()
    user_keys: tuple[str, ...] = ()


# Their keywords, in the same order.
ALGORITHMS = ("KexAlgorithms", "Ciphers", "MACs", "HostKeyAlgorithms", "PubkeyAcceptedAlgorithms")


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
    identities_only: bool = False
    agent: str | None = None  # path of the agent's socket
    known_as: str = ""  # HostKeyAlias
    user_known_hosts: tuple[Path, ...] = ()
    global_known_hosts: tuple[Path, ...] = ()
    accept_new: bool = False  # StrictHostKeyChecking accept-new, no or off
    algorithms: Algorithms = field(default_factory=Algorithms)
    rsa_bits: int = 1024  # of an RSA host key, at least
    kerberos: bool = False  # GSSAPIAuthentication
    connect_timeout: float | None = None
    by_hand: str = ""  # how a person logs in there
    beyond: str = ""  # the keyword that only OpenSSH's own client can follow
    jumps: tuple[Target, ...] = ()  # the last one is next to the target

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names under which known_hosts may hold its key, the best first."""
        if self.known_as:
            return (self.known_as.lower(),)
        name = self.hostname.lower()
        return (name,) if self.port == 22 else (f"[{name}]:{self.port}", name)


@dataclass(frozen=True)
class CommandLine:
    """The options that a command line of `ssh` would have."""

    alias: str
    user: str | None = None
    port: int | None = None
    identity: Path | None = None
    config: Path | None = None

    def words(self, *more: str) -> list[str]:
        flags = {"-F": self.config, "-l": self.user, "-p": self.port, "-i": self.identity}
        given = [str(word) for flag, value in flags.items() if value is not None for word in (flag, value)]
        return ["ssh", *more, *given, "--", self.alias]


def resolve(host: Host) -> Target:
    """Return the target of a host entry; its user, port and identity win over ssh_config. Raise HostError."""
    config = Path(host.ssh_config).expanduser() if host.ssh_config else None
    asked = CommandLine(host.ssh, host.user, host.port, _identity(host), config)
    try:
        target = _resolve(asked)
    except BadConfigError as error:
        hint = f"`{shlex.join(asked.words('-G'))}`"
        what = "cannot be resolved from ssh_config"
        raise HostError(host.name, what, kind="config", why=str(error), hint=hint) from error
    except FileNotFoundError as error:
        raise HereError(host.name, "there is no program `ssh`", "install openssh-client here") from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise HereError(host.name, where + reason(error)) from error
    return replace(
        target, by_hand=host.by_hand(), default_identities=target.default_identities and not asked.identity
    )


def _identity(host: Host) -> Path | None:
    if host.identity is None:
        return None
    file = Path(host.identity).expanduser()
    if not file.is_file():
        raise HostError(
            host.name,
            f"has no identity file {host.identity}",
            kind="identity",
            why="`identity` in the inventory names a file that is not there",
            hint=f"`{shlex.join(['ls', '-l', str(file.parent)])}`, or make one: "
            f"`{shlex.join(['ssh-keygen', '-t', 'ed25519', '-f', str(file)])}`",
        )
    return file


def _resolve(asked: CommandLine, before: tuple[str, ...] = ()) -> Target:
    target = target_of(asked, options := _options_for(asked))
    value = first(options, "proxyjump", "none")
    texts = [] if value.lower() == "none" else [hop for hop in value.split(",") if hop.strip()]
    hops = [CommandLine(alias, user, port, config=asked.config)
            for user, alias, port in map(split_destination, texts)]  # fmt: skip
    if not hops:
        return target
    # As ssh does: the first hop is reached as its own entry says, the others through the one before.
    if hops[0].alias in (*before, target.alias):
        raise BadConfigError(
            f"ProxyJump runs in a circle: {' -> '.join([*before, target.alias, hops[0].alias])}"
        )
    nearest = _resolve(hops[0], (*before, target.alias))
    others = [target_of(hop, _options_for(hop)) for hop in hops[1:]]
    jumps = (*nearest.jumps, replace(nearest, jumps=()), *others)
    beyond = target.beyond or next((f"{jump.beyond} of {jump.alias}" for jump in jumps if jump.beyond), "")
    return replace(target, jumps=jumps, beyond=beyond)


def target_of(asked: CommandLine, options: Options) -> Target:
    """Return the target that these options describe, without its jumps."""
    user = first(options, "user")
    identities = [value for value in options.get("identityfile", ()) if value != "none"]
    agent = first(options, "identityagent", "SSH_AUTH_SOCK")
    algorithms, beyond = _algorithms(options)
    return Target(
        alias=split_destination(asked.alias)[1],
        by_hand=shlex.join(replace(asked, user=user).words()),
        hostname=first(options, "hostname", asked.alias),
        port=int(first(options, "port", "22")),
        user=user,
        family=_FAMILIES.get(first(options, "addressfamily"), socket.AF_UNSPEC),
        identities=tuple(Path(value).expanduser() for value in identities),
        default_identities=all(value in _default_spellings() for value in identities),
        identities_only=first(options, "identitiesonly") not in _NO,
        agent=None if agent == "none"
        else os.environ.get(agent) if agent == "SSH_AUTH_SOCK"
        else str(Path(agent).expanduser()),
        known_as=_unless_none(first(options, "hostkeyalias")),
        user_known_hosts=_files(first(options, "userknownhostsfile")),
        global_known_hosts=_files(first(options, "globalknownhostsfile")),
        accept_new=first(options, "stricthostkeychecking", "ask") in {"accept-new", "off", "no", "false"},
        algorithms=algorithms,
        rsa_bits=int(first(options, "requiredrsasize", "1024")),
        kerberos=first(options, "gssapiauthentication") not in _NO,
        connect_timeout=_seconds(first(options, "connecttimeout")),
        beyond=_beyond(options) or beyond,
    )  # fmt: skip


def _beyond(options: Options) -> str:
    for keyword, usual in _BEYOND.items():
        if first(options, keyword.lower()).lower() not in usual:
            return keyword
    if "publickey" not in first(options, "preferredauthentications", "publickey"):
        return "PreferredAuthentications"
    for keyword in ("IdentityFile", "IdentityAgent"):  # `ssh -G` leaves what they stand for to the client
        if any(re.search(r"%|\$\{|^\$", value) for value in options.get(keyword.lower(), ())):
            return keyword
    # A master that somebody has opened is used, with whatever was typed for it.
    master = _unless_none(first(options, "controlpath"))
    return "ControlPath" if master and Path(master).expanduser().is_socket() else ""


def _algorithms(options: Options) -> tuple[Algorithms, str]:
    """Return the lists, and the keyword of one with OpenSSH's own signs, which `ssh -G` would write out."""
    values = [first(options, keyword.lower()) for keyword in ALGORITHMS]
    values[-1] = values[-1] or first(options, "pubkeyacceptedkeytypes")  # its name until OpenSSH 8.4
    changes = [
        name for name, value in zip(ALGORITHMS, values, strict=True) if re.search(r"^[-+^]|[*?]", value)
    ]
    return Algorithms(*(tuple(filter(None, value.split(","))) for value in values)), "".join(changes[:1])


def _seconds(value: str) -> float | None:
    return float(value) or None if value.isdigit() else None


@cache
def _default_spellings() -> frozenset[str]:
    homes = ("~/.ssh/", f"{Path.home()}/.ssh/")
    return frozenset(f"{home}id_{name}" for home in homes for name in _DEFAULT_IDENTITIES)


def _unless_none(value: str) -> str:
    return "" if value.lower() == "none" else value


def _files(value: str) -> tuple[Path, ...]:
    """Split a list of files: `ssh -G` puts blanks between them, and does not quote one with a blank in it."""
    whole = Path(value).expanduser()
    if " " in value and whole.is_file():
        return (whole,)
    return tuple(Path(word).expanduser() for word in value.split() if _unless_none(word))


# --- ssh_config ---


def first(options: Options, keyword: str, default: str = "") -> str:
    values = options.get(keyword)
    return values[0] if values else default


@dataclass
class _Slot:
    lock: threading.Lock = field(default_factory=threading.Lock)
    since: float = float("-inf")
    options: Options = field(default_factory=dict)


_lock = threading.Lock()
_slots: dict[CommandLine, _Slot] = {}


def _options_for(asked: CommandLine) -> Options:
    """Return the options in force; raise `BadConfigError` or OSError. Each name is asked for once."""
    with _lock:
        slot = _slots.setdefault(asked, _Slot())
    with slot.lock:
        if time.monotonic() - slot.since > _FRESH:
            slot.options = _ask_ssh(asked)
            slot.since = time.monotonic()
        return slot.options


def _ask_ssh(asked: CommandLine) -> Options:
    try:
        done = subprocess.run(
            asked.words("-G", "-T"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
            timeout=_PATIENCE,
        )
    except subprocess.TimeoutExpired as error:
        raise BadConfigError(f"ssh -G took more than {error.timeout:.0f} s (a Match exec?)") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.strip().splitlines() if "terminating" not in line]
        raise BadConfigError(lines[-1] if lines else f"ssh -G exited with {done.returncode}")
    return parse_dump(done.stdout)


def parse_dump(text: str) -> Options:
    """Read the output of `ssh -G`: a keyword and its value a line; some keywords come several times."""
    options: dict[str, list[str]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        options.setdefault(keyword.lower(), []).append(value)
    return options


def split_destination(text: str) -> tuple[str | None, str, int | None]:
    """Split `[ssh://][user@]host[:port]`; IPv6 with a port is in brackets."""
    text = text.strip().removeprefix("ssh://").rstrip("/")
    user, at, rest = text.rpartition("@")
    bracketed = re.fullmatch(r"\[([^]]+)\](?::(\d+))?", rest)
    match = bracketed or re.fullmatch(r"([^:]+):(\d+)", rest)
    host, port = (match[1], match[2]) if match else (rest, None)
    return (user if at else None), host, (int(port) if port else None)
