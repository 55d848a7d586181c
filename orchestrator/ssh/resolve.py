"""From a host entry to a `Target`: ssh_config as OpenSSH reads it.

`ssh -G` answers where OpenSSH exists. paramiko's parser, which ignores Include and misreads some
Match lines, is the fallback.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import paramiko

from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.ssh.target import Strict, Target

Options: TypeAlias = Mapping[str, Sequence[str]]  # lower-case keyword -> its values

_DEFAULT_IDENTITIES = (
    "id_rsa",
    "id_ecdsa",
    "id_ecdsa_sk",
    "id_ed25519",
    "id_ed25519_sk",
    "id_xmss",
    "id_dsa",
)
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
_ACCEPTING = frozenset({"accept-new", "no", "off", "false"})


def resolve(host: Host) -> Target:
    """The target of a host entry; user, port and identity of the entry win over ssh_config."""
    config = Path(host.ssh_config).expanduser() if host.ssh_config else None
    if host.ssh_config:
        config = Path(host.ssh_config).expanduser()
    asked = _Asked(host.ssh, host.user, host.port, _identity(host))
    target = _resolve(host.name, asked, config, ())
    return replace(target, default_identities=False) if asked.identity else target


@dataclass(frozen=True)
class _Asked:
    """What the command line of `ssh` would say."""

    alias: str
    user: str | None = None
    port: int | None = None
    identity: Path | None = None


def _identity(host: Host) -> Path | None:
    if host.identity is None:
        return None
    path = Path(host.identity).expanduser()
    if not path.is_file():
        raise HostError(
            host.name,
            f"has no identity file {host.identity}",
            kind="identity",
            why="`identity` in the inventory names a file that is not there",
            hint=f"ls -l {path.parent}, or make one: ssh-keygen -t ed25519 -f {path}",
        )
    return path


def _resolve(name: str, asked: _Asked, config: Path | None, seen: tuple[str, ...]) -> Target:
    options = _options(name, asked, config)
    target = target_of(asked.alias, options)
    hops = _jumps(options)
    if not hops:
        return target
    # As ssh does: the first hop is reached as its own entry says, the others through the one before.
    chain = [_resolve_hop(name, hops[0], config, (*seen, target.alias))]
    chain += [target_of(hop.alias, _options(name, hop, config)) for hop in map(_hop, hops[1:])]
    return replace(target, jumps=(*chain[0].jumps, *(replace(hop, jumps=()) for hop in chain)))


def _resolve_hop(name: str, hop: str, config: Path | None, seen: tuple[str, ...]) -> Target:
    asked = _hop(hop)
    if asked.alias in seen:
        path = " -> ".join([*seen, asked.alias])
        raise _config_error(name, f"ProxyJump runs in a circle: {path}", f"run: ssh -G {asked.alias}")
    return _resolve(name, asked, config, seen)


def _hop(text: str) -> _Asked:
    user, alias, port = split_destination(text)
    return _Asked(alias, user, port)


def split_destination(text: str) -> tuple[str | None, str, int | None]:
    """`[ssh://][user@]host[:port]` in its parts; IPv6 with a port is in brackets."""
    text = text.strip().removeprefix("ssh://").rstrip("/")
    user, at, rest = text.rpartition("@")
    bracketed = re.fullmatch(r"\[([^]]+)\](?::(\d+))?", rest)
    plain = re.fullmatch(r"([^:]+):(\d+)", rest)
    match = bracketed or plain
    host, port = (match[1], match[2]) if match else (rest, None)
    return (user if at else None), host, (int(port) if port else None)


def _jumps(options: Options) -> list[str]:
    value = first(options, "proxyjump", "none")
    return [] if value.lower() == "none" else [hop for hop in value.split(",") if hop.strip()]


# --- asking for the options ---


@cache
def _ssh_binary() -> str | None:
    return shutil.which("ssh")


def _options(name: str, asked: _Asked, config: Path | None) -> Options:
    binary = _ssh_binary()
    if binary is None:
        return read_without_ssh(asked.alias, asked.user, asked.port, asked.identity, config)
    flags = {"-F": config, "-l": asked.user, "-p": asked.port, "-i": asked.identity}
    argv = [binary, "-G", "-T"]
    argv += [str(word) for flag, value in flags.items() if value is not None for word in (flag, value)]
    done = subprocess.run(
        [*argv, "--", asked.alias],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.strip().splitlines() if "terminating" not in line]
        why = said[-1] if said else f"ssh -G exited with {done.returncode}"
        raise _config_error(name, why, f"run: ssh -G {asked.alias}")
    return parse_dump(done.stdout)


def parse_dump(text: str) -> Options:
    """The output of `ssh -G`: a keyword and its value a line; some keywords come several times."""
    options: dict[str, list[str]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        options.setdefault(keyword.lower(), []).append(value)
    return options


def read_without_ssh(
    alias: str, user: str | None, port: int | None, identity: Path | None, config: Path | None
) -> Options:
    """What paramiko's parser makes of the files; the entry's own values win."""
    parsed = paramiko.SSHConfig()
    files = [config] if config else [Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")]
    for file in files:
        if file.is_file():
            with file.open(encoding="utf-8", errors="replace") as stream:
                parsed.parse(stream)
    given_user, bare, given_port = split_destination(alias)
    found = parsed.lookup(bare)
    several = {"identityfile", "certificatefile", "localforward", "remoteforward"}  # lists, says paramiko
    options = {key: list(value) if key in several else [value] for key, value in found.items()}
    options["hostname"] = [found.get("hostname", bare)]
    if user or given_user:
        options["user"] = [user or given_user or ""]
    if port or given_port:
        options["port"] = [str(port or given_port)]
    if identity:
        options["identityfile"] = [str(identity), *options.get("identityfile", [])]
    return options


# --- options to a target ---


def target_of(alias: str, options: Options) -> Target:
    """The target that these options describe, without its jumps."""
    me = pwd.getpwuid(os.getuid()).pw_name  # as ssh does; the environment may say otherwise
    hostname = first(options, "hostname", alias)
    port = int(first(options, "port", "22"))
    user = first(options, "user", me)
    _, bare, _ = split_destination(alias)
    key_alias = _unless_none(first(options, "hostkeyalias", ""))
    local = socket.gethostname()
    tokens = {
        "%": "%",
        "d": str(Path.home()),
        "h": hostname,
        "i": str(os.getuid()),
        "k": key_alias or bare,
        "L": local.partition(".")[0],
        "l": local,
        "n": bare,
        "p": str(port),
        "r": user,
        "u": me,
        "j": first(options, "proxyjump", ""),
    }
    identities = options.get("identityfile") or [f"~/.ssh/{name}" for name in _DEFAULT_IDENTITIES]
    command = _unless_none(first(options, "proxycommand", ""))
    return Target(
        alias=bare,
        hostname=hostname,
        port=port,
        user=user,
        family=_FAMILIES.get(first(options, "addressfamily", "any"), socket.AF_UNSPEC),
        identities=tuple(_path(value, tokens) for value in identities if _unless_none(value)),
        default_identities=all(value in _default_spellings() for value in identities),
        certificates=tuple(_path(value, tokens) for value in options.get("certificatefile", ())),
        identities_only=first(options, "identitiesonly", "no") in {"yes", "true"},
        agent=_agent(first(options, "identityagent", "SSH_AUTH_SOCK"), tokens),
        known_as=key_alias,
        user_known_hosts=_files(
            options, "userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2", tokens
        ),
        global_known_hosts=_files(options, "globalknownhostsfile", "/etc/ssh/ssh_known_hosts", tokens),
        strict=_strict(first(options, "stricthostkeychecking", "ask")),
        hash_known_hosts=first(options, "hashknownhosts", "no") in {"yes", "true"},
        connect_timeout=_seconds(first(options, "connecttimeout", "none")),
        proxy_command=expand(command, tokens) if command else None,
    )


def first(options: Options, keyword: str, default: str) -> str:
    values = options.get(keyword)
    return values[0] if values else default


def _strict(value: str) -> Strict:
    return Strict.ACCEPT_NEW if value.lower() in _ACCEPTING else Strict.REFUSE


def _seconds(value: str) -> float | None:
    return float(value) if value.isdigit() and value != "0" else None


def _unless_none(value: str) -> str | None:
    return None if value.lower() in {"", "none"} else value


@cache
def _default_spellings() -> frozenset[str]:
    homes = ("~/.ssh/", str(Path.home() / ".ssh") + "/")
    return frozenset(home + name for home in homes for name in _DEFAULT_IDENTITIES)


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Replace %-tokens as ssh_config(5) lists them; an unknown one stays as it is."""
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def _path(text: str, tokens: Mapping[str, str]) -> Path:
    expanded = expand(text, tokens)
    expanded = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], match[0]), expanded)
    return Path(expanded).expanduser()


def _files(options: Options, keyword: str, default: str, tokens: Mapping[str, str]) -> tuple[Path, ...]:
    """A list of files: `ssh -G` puts blanks between them, and does not quote one with a blank in it."""
    value = " ".join(options.get(keyword) or [default])
    whole = _path(value, tokens)
    if " " in value and whole.is_file():
        return (whole,)
    words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', value)]
    return tuple(_path(word, tokens) for word in words if _unless_none(word))


def _agent(value: str, tokens: Mapping[str, str]) -> str | None:
    if value.lower() == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK")
    if value.startswith("$") and not value.startswith("${"):
        return os.environ.get(value[1:])
    return str(_path(value, tokens))


def _config_error(host: str, why: str, hint: str) -> HostError:
    return HostError(host, "cannot be resolved from ssh_config", kind="config", why=why, hint=hint)
