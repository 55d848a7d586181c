"""From a host entry to a `Target`: what ssh_config says of a name, asked of `ssh -G` where OpenSSH exists.

paramiko's parser, which ignores Include and misreads some Match lines, is the fallback.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
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

# Held by whoever imports paramiko: two threads that import parts of it see one another's half-made modules.
IMPORTING = threading.RLock()
_FRESH = 20.0  # seconds an answer is good for: from the question for passphrases to the connection
_PATIENCE = 20.0  # seconds for `ssh -G`, which may run a `Match exec`
_DEFAULT_IDENTITIES = (
    "id_rsa",
    "id_ecdsa",
    "id_ecdsa_sk",
    "id_ed25519",
    "id_ed25519_sk",
    "id_dsa",
    "id_xmss",
)
_USER_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
_YES = frozenset({"yes", "true"})
_NO = frozenset({"no", "false"})
# Keywords that paramiko cannot follow, with the values at which they ask for nothing.
_BEYOND: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        ("KnownHostsCommand", "RevokedHostKeys", "CertificateFile", "PKCS11Provider", "ProxyCommand",
         "BindAddress", "BindInterface", "SetEnv", "RefuseConnection"), frozenset({"", "none"})
    ),
    **dict.fromkeys(
        ("VerifyHostKeyDNS", "NoHostAuthenticationForLocalhost", "HostbasedAuthentication"), _NO | {""}
    ),
    "PubkeyAuthentication": frozenset({"", "yes", "true", "unbound", "host-bound"}),
}  # fmt: skip


class BadConfigError(Exception):
    """ssh_config cannot be read; the text says where and why."""


class Strict(StrEnum):
    """StrictHostKeyChecking, as far as it makes a difference without a person at the prompt."""

    REFUSE = "refuse"  # yes and ask: an unknown key is refused
    ACCEPT_NEW = "accept-new"  # accept-new, no and off: an unknown key is remembered


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
    identities_only: bool = False
    agent: str | None = None  # path of the agent's socket
    known_as: str | None = None  # HostKeyAlias
    user_known_hosts: tuple[Path, ...] = ()
    global_known_hosts: tuple[Path, ...] = ()
    strict: Strict = Strict.REFUSE
    hash_known_hosts: bool = False
    algorithms: Algorithms = field(default_factory=Algorithms)
    rsa_bits: int = 1024  # of an RSA host key, at least
    kerberos: bool = False  # GSSAPIAuthentication
    connect_timeout: float | None = None
    config: Path | None = None  # another ssh_config than the user's
    port_asked: bool = False  # the port is the inventory's, not ssh_config's
    beyond: str = ""  # the keyword that only OpenSSH's own client can follow
    jumps: tuple[Target, ...] = ()  # the last one is next to the target

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names under which known_hosts may hold its key, the best first."""
        if self.known_as:
            return (self.known_as.lower(),)
        name = self.hostname.lower()
        return (name,) if self.port == 22 else (f"[{name}]:{self.port}", name)

    def command(self, *flags: str) -> str:
        """Return how a person reaches it with OpenSSH, for hints."""
        words = ["ssh", *flags]
        words += ["-F", str(self.config)] if self.config else []
        words += ["-p", str(self.port)] if self.port_asked else []
        return shlex.join([*words, f"{self.user}@{self.alias}"])


@dataclass(frozen=True)
class CommandLine:
    """The options that a command line of `ssh` would have."""

    alias: str
    user: str | None = None
    port: int | None = None
    identity: Path | None = None
    config: Path | None = None


def resolve(host: Host) -> Target:
    """Return the target of a host entry; its user, port and identity win over ssh_config. Raise HostError."""
    config = Path(host.ssh_config).expanduser() if host.ssh_config else None
    try:
        asked = CommandLine(host.ssh, host.user, host.port, _identity(host), config)
        target = _resolve(asked, ())
    except BadConfigError as error:
        flag = f"-F {shlex.quote(str(config))} " if config else ""
        raise HostError(
            host.name,
            "cannot be resolved from ssh_config",
            kind="config",
            why=str(error),
            hint=f"`ssh {flag}-G {host.ssh}`",
        ) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise HereError(host.name, where + reason(error)) from error
    return replace(target, default_identities=False) if asked.identity else target


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


def _resolve(asked: CommandLine, before: tuple[str, ...]) -> Target:
    options = options_for(asked)
    target = target_of(asked, options)
    value = first(options, "proxyjump", "none")
    texts = [] if value.lower() == "none" else [hop for hop in value.split(",") if hop.strip()]
    hops = [CommandLine(alias, user, port, config=asked.config)
            for user, alias, port in map(split_destination, texts)]  # fmt: skip
    if not hops:
        return target
    # As ssh does: the first hop is reached as its own entry says, the others through the one before.
    if hops[0].alias in (*before, target.alias):
        circle = " -> ".join([*before, target.alias, hops[0].alias])
        raise BadConfigError(f"ProxyJump runs in a circle: {circle}")
    nearest = _resolve(hops[0], (*before, target.alias))
    others = [target_of(hop, options_for(hop)) for hop in hops[1:]]
    jumps = (*nearest.jumps, replace(nearest, jumps=()), *others)
    beyond = target.beyond or next((f"{jump.beyond} of {jump.alias}" for jump in jumps if jump.beyond), "")
    return replace(target, jumps=jumps, beyond=beyond)


def target_of(asked: CommandLine, options: Options) -> Target:
    """Return the target that these options describe, without its jumps; raise `BadConfigError` or OSError."""
    try:
        me = pwd.getpwuid(os.getuid()).pw_name  # as ssh does; the environment may say otherwise
    except KeyError as error:
        raise OSError(0, f"user id {os.getuid()} has no name in /etc/passwd") from error
    hostname = first(options, "hostname", asked.alias)
    port = int(first(options, "port", "22"))
    user = first(options, "user", me)
    _, bare, _ = split_destination(asked.alias)
    key_alias = _unless_none(first(options, "hostkeyalias", ""))
    tokens = {
        "%": "%",
        "d": str(Path.home()),
        "h": hostname,
        "i": str(os.getuid()),
        "k": key_alias or bare,
        "L": socket.gethostname().partition(".")[0],
        "l": socket.gethostname(),
        "n": bare,
        "p": str(port),
        "r": user,
        "u": me,
        "j": first(options, "proxyjump", ""),
    }

    def files(keyword: str, default: str) -> tuple[Path, ...]:
        return _files(" ".join(options.get(keyword) or [default]), tokens)

    identities = options.get("identityfile") or [f"~/.ssh/{name}" for name in _DEFAULT_IDENTITIES]
    strict = first(options, "stricthostkeychecking", "ask").lower()
    algorithms, beyond = _algorithms(options)
    return Target(
        alias=bare,
        config=asked.config,
        port_asked=asked.port is not None,
        hostname=hostname,
        port=port,
        user=user,
        family=_FAMILIES.get(first(options, "addressfamily", "any"), socket.AF_UNSPEC),
        identities=tuple(_path(value, tokens) for value in identities if _unless_none(value)),
        default_identities=all(value in _default_spellings() for value in identities),
        identities_only=first(options, "identitiesonly", "no").lower() in _YES,
        agent=_agent(first(options, "identityagent", "SSH_AUTH_SOCK"), tokens),
        known_as=key_alias,
        user_known_hosts=files("userknownhostsfile", _USER_KNOWN_HOSTS),
        global_known_hosts=files("globalknownhostsfile", _GLOBAL_KNOWN_HOSTS),
        strict=Strict.ACCEPT_NEW if strict in {"accept-new", "off", *_NO} else Strict.REFUSE,
        hash_known_hosts=first(options, "hashknownhosts", "no").lower() in _YES,
        algorithms=algorithms,
        rsa_bits=int(_number(first(options, "requiredrsasize", "")) or 1024),
        kerberos=first(options, "gssapiauthentication", "no").lower() in _YES,
        connect_timeout=_number(first(options, "connecttimeout", "none")) or None,
        beyond=_beyond(options) or beyond,
    )


def _beyond(options: Options) -> str:
    for keyword, usual in _BEYOND.items():
        if first(options, keyword.lower(), "").lower() not in usual:
            return keyword
    if "publickey" not in first(options, "preferredauthentications", "publickey"):
        return "PreferredAuthentications"
    # A master that somebody has opened is used, with whatever was typed for it.
    master = _unless_none(first(options, "controlpath", ""))
    return "ControlPath" if master and Path(master).expanduser().is_socket() else ""


def _algorithms(options: Options) -> tuple[Algorithms, str]:
    """Return the lists, and the keyword of one with OpenSSH's own signs, which `ssh -G` would write out."""
    values = [first(options, keyword.lower(), "") for keyword in ALGORITHMS]
    values[-1] = values[-1] or first(options, "pubkeyacceptedkeytypes", "")  # its name until OpenSSH 8.4
    changes = [
        name for name, value in zip(ALGORITHMS, values, strict=True) if re.search(r"^[-+^]|[*?]", value)
    ]
    return Algorithms(*(tuple(filter(None, value.split(","))) for value in values)), "".join(changes[:1])


def _number(value: str) -> float:
    return float(value) if value.isdigit() else 0.0


@cache
def _default_spellings() -> frozenset[str]:
    homes = ("~/.ssh/", str(Path.home() / ".ssh") + "/")
    return frozenset(home + name for home in homes for name in _DEFAULT_IDENTITIES)


def _agent(value: str, tokens: Mapping[str, str]) -> str | None:
    if value.lower() == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK")
    if value.startswith("$") and not value.startswith("${"):
        return os.environ.get(value[1:])
    return str(_path(value, tokens))


def _unless_none(value: str) -> str | None:
    return None if value.lower() in {"", "none"} else value


def _path(text: str, tokens: Mapping[str, str]) -> Path:
    """Return the path that a value with %-tokens, variables and `~` means."""
    expanded = re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)
    expanded = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], match[0]), expanded)
    return Path(expanded).expanduser()


def _files(value: str, tokens: Mapping[str, str]) -> tuple[Path, ...]:
    """Split a list of files: `ssh -G` puts blanks between them, and does not quote one with a blank in it."""
    whole = _path(value, tokens)
    if " " in value and whole.is_file():
        return (whole,)
    words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', value)]
    return tuple(_path(word, tokens) for word in words if _unless_none(word))


# --- ssh_config ---


def first(options: Options, keyword: str, default: str) -> str:
    values = options.get(keyword)
    return values[0] if values else default


@dataclass
class _Slot:
    lock: threading.Lock = field(default_factory=threading.Lock)
    since: float = float("-inf")
    options: Options = field(default_factory=dict)


_lock = threading.Lock()
_slots: dict[CommandLine, _Slot] = {}


def options_for(asked: CommandLine) -> Options:
    """Return the options in force; raise `BadConfigError`. Thread-safe; each name is asked for once."""
    with _lock:
        slot = _slots.setdefault(asked, _Slot())
    with slot.lock:
        if time.monotonic() - slot.since > _FRESH:
            binary = ssh_binary()
            slot.options = read_files(asked) if binary is None else _ask_ssh(binary, asked)
            slot.since = time.monotonic()
        return slot.options


@cache
def ssh_binary() -> str | None:
    return shutil.which("ssh")


def _ask_ssh(binary: str, asked: CommandLine) -> Options:
    flags = {"-F": asked.config, "-l": asked.user, "-p": asked.port, "-i": asked.identity}
    words = [str(word) for flag, value in flags.items() if value is not None for word in (flag, value)]
    try:
        done = subprocess.run(
            [binary, "-G", "-T", *words, "--", asked.alias],
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


def read_files(asked: CommandLine) -> Options:
    """Return what paramiko's parser makes of the files; what was asked for wins."""
    with IMPORTING:
        import paramiko  # noqa: PLC0415 - only where there is no OpenSSH

    parsed = paramiko.SSHConfig()
    usual = [Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")]
    try:
        for file in [asked.config] if asked.config else usual:
            if file.is_file():
                with file.open(encoding="utf-8", errors="replace") as stream:
                    parsed.parse(stream)
        user, host, port = split_destination(asked.alias)
        values = parsed.lookup(host)
    except (OSError, paramiko.SSHException) as error:
        raise BadConfigError(str(error)) from error
    several = {"identityfile", "certificatefile", "localforward", "remoteforward"}  # lists, says paramiko
    options = {key: list(value) if key in several else [value] for key, value in values.items()}
    options["hostname"] = [values.get("hostname", host)]
    if asked.user or user:
        options["user"] = [asked.user or user or ""]
    if asked.port or port:
        options["port"] = [str(asked.port or port)]
    if asked.identity:
        options["identityfile"] = [str(asked.identity), *options.get("identityfile", [])]
    return options


def split_destination(text: str) -> tuple[str | None, str, int | None]:
    """Split `[ssh://][user@]host[:port]`; IPv6 with a port is in brackets."""
    text = text.strip().removeprefix("ssh://").rstrip("/")
    user, at, rest = text.rpartition("@")
    bracketed = re.fullmatch(r"\[([^]]+)\](?::(\d+))?", rest)
    match = bracketed or re.fullmatch(r"([^:]+):(\d+)", rest)
    host, port = (match[1], match[2]) if match else (rest, None)
    return (user if at else None), host, (int(port) if port else None)
