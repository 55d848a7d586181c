"""From a host entry to a `Target`: the options of ssh_config with their tokens, paths and jumps resolved."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.ssh.algorithms import Algorithms
from orchestrator.ssh.options import (
    BadConfigError,
    CommandLine,
    Options,
    first,
    options_for,
    split_destination,
)
from orchestrator.ssh.target import Method, Strict, Target
from orchestrator.ssh.tokens import expand, files, path, unless_none

_DEFAULT_IDENTITIES = (
    "id_rsa",
    "id_ecdsa",
    "id_ecdsa_sk",
    "id_ed25519",
    "id_ed25519_sk",
    "id_xmss",
    "id_dsa",
)
_USER_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
_ACCEPTING = frozenset({"accept-new", "no", "off", "false"})


def resolve(host: Host) -> Target:
    """The target of a host entry; user, port and identity of the entry win over ssh_config."""
    config = Path(host.ssh_config).expanduser() if host.ssh_config else None
    asked = CommandLine(host.ssh, host.user, host.port, _identity(host), config)
    try:
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


def _resolve(asked: CommandLine, seen: tuple[str, ...]) -> Target:
    options = options_for(asked)
    target = target_of(asked, options)
    hops = [_hop(text, asked) for text in _jumps(options)]
    if not hops:
        return target
    # As ssh does: the first hop is reached as its own entry says, the others through the one before.
    if hops[0].alias in (*seen, target.alias):
        circle = " -> ".join([*seen, target.alias, hops[0].alias])
        raise BadConfigError(f"ProxyJump runs in a circle: {circle}")
    nearest = _resolve(hops[0], (*seen, target.alias))
    others = [target_of(hop, options_for(hop)) for hop in hops[1:]]
    return replace(target, jumps=(*nearest.jumps, replace(nearest, jumps=()), *others))


def _hop(text: str, behind: CommandLine) -> CommandLine:
    user, alias, port = split_destination(text)
    return CommandLine(alias, user, port, config=behind.config)


def _jumps(options: Options) -> list[str]:
    value = first(options, "proxyjump", "none")
    return [] if value.lower() == "none" else [hop for hop in value.split(",") if hop.strip()]


def target_of(asked: CommandLine, options: Options) -> Target:
    """The target that these options describe, without its jumps; raise `BadConfigError`."""
    if word := unless_none(first(options, "refuseconnection", "none")):
        raise BadConfigError(f"RefuseConnection: {word}")
    me = pwd.getpwuid(os.getuid()).pw_name  # as ssh does; the environment may say otherwise
    hostname = first(options, "hostname", asked.alias)
    port = int(first(options, "port", "22"))
    user = first(options, "user", me)
    _, bare, _ = split_destination(asked.alias)
    key_alias = unless_none(first(options, "hostkeyalias", ""))
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
    command = unless_none(first(options, "proxycommand", ""))
    return Target(
        alias=bare,
        config=asked.config,
        port_asked=asked.port is not None,
        hostname=hostname,
        port=port,
        user=user,
        family=_FAMILIES.get(first(options, "addressfamily", "any"), socket.AF_UNSPEC),
        identities=tuple(path(value, tokens) for value in identities if unless_none(value)),
        default_identities=all(value in _default_spellings() for value in identities),
        certificates=tuple(path(value, tokens) for value in options.get("certificatefile", ())),
        identities_only=_yes(options, "identitiesonly"),
        agent=_agent(first(options, "identityagent", "SSH_AUTH_SOCK"), tokens),
        known_as=key_alias,
        user_known_hosts=_files(options, "userknownhostsfile", _USER_KNOWN_HOSTS, tokens),
        global_known_hosts=_files(options, "globalknownhostsfile", _GLOBAL_KNOWN_HOSTS, tokens),
        revoked_keys=_files(options, "revokedhostkeys", "none", tokens),
        known_hosts_command=_words(options, "knownhostscommand", tokens),
        check_ip=_yes(options, "checkhostip"),
        trust_localhost=_yes(options, "nohostauthenticationforlocalhost"),
        dns_asked=first(options, "verifyhostkeydns", "no").lower() in {"yes", "true", "ask"},
        strict=_strict(first(options, "stricthostkeychecking", "ask")),
        hash_known_hosts=_yes(options, "hashknownhosts"),
        algorithms=_algorithms(options),
        rsa_bits=_whole(options, "requiredrsasize", 1024),
        methods=_methods(options),
        batch=_yes(options, "batchmode"),
        pkcs11=unless_none(first(options, "pkcs11provider", "none")),
        environment=tuple(_assignments(options)),
        bind_address=unless_none(first(options, "bindaddress", "none")),
        bind_interface=unless_none(first(options, "bindinterface", "none")),
        attempts=max(1, _whole(options, "connectionattempts", 1)),
        connect_timeout=_seconds(first(options, "connecttimeout", "none")),
        proxy_command=expand(command, tokens) if command else None,
        proxy_passes_fd=_yes(options, "proxyusefdpass"),
    )


def _methods(options: Options) -> tuple[Method, ...]:
    """The ways to log in that PreferredAuthentications and the switches leave."""
    order = first(options, "preferredauthentications", "").lower().split(",")
    named = [method for method in Method if order == [""] or method in order]
    batch = _yes(options, "batchmode")
    ruled_out = {
        Method.PUBLICKEY: first(options, "pubkeyauthentication", "yes").lower() in {"no", "false"},
        Method.PASSWORD: batch or not _yes(options, "passwordauthentication", "yes"),
        Method.KEYBOARD: batch
        or not (
            _yes(options, "kbdinteractiveauthentication", "yes")
            and _yes(options, "challengeresponseauthentication", "yes")  # its name until OpenSSH 8.6
        ),
    }
    return tuple(method for method in named if not ruled_out[method])


def _algorithms(options: Options) -> Algorithms:
    user_keys = first(options, "pubkeyacceptedkeytypes", "")  # its name until OpenSSH 8.4
    return Algorithms(
        kex=first(options, "kexalgorithms", ""),
        ciphers=first(options, "ciphers", ""),
        macs=first(options, "macs", ""),
        host_keys=first(options, "hostkeyalgorithms", ""),
        user_keys=first(options, "pubkeyacceptedalgorithms", user_keys),
    )


def _words(options: Options, keyword: str, tokens: Mapping[str, str]) -> tuple[str, ...]:
    """A command that no shell reads, with the tokens known so far; raise `BadConfigError`."""
    text = unless_none(first(options, keyword, "none"))
    try:
        return tuple(expand(word, {**tokens, "%": "%%"}) for word in shlex.split(text or ""))
    except ValueError as error:
        raise BadConfigError(f"{keyword} `{text}`: {error}") from error


def _assignments(options: Options) -> Iterator[tuple[str, str]]:
    """The variables of SetEnv: `ssh -G` writes one a line, the file may hold several."""
    for value in options.get("setenv", ()):
        whole = re.fullmatch(r"([^\s=\"]+)=([^\"]*)", value)
        words = [value] if whole else shlex.split(value)
        for name, equals, content in (word.partition("=") for word in words):
            if name and equals:
                yield name, content


def _files(options: Options, keyword: str, default: str, tokens: Mapping[str, str]) -> tuple[Path, ...]:
    return files(" ".join(options.get(keyword) or [default]), tokens)


def _strict(value: str) -> Strict:
    return Strict.ACCEPT_NEW if value.lower() in _ACCEPTING else Strict.REFUSE


def _yes(options: Options, keyword: str, default: str = "no") -> bool:
    return first(options, keyword, default).lower() in {"yes", "true"}


def _whole(options: Options, keyword: str, default: int) -> int:
    value = first(options, keyword, "")
    return int(value) if value.isdigit() else default


def _seconds(value: str) -> float | None:
    return float(value) if value.isdigit() and value != "0" else None


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
    return str(path(value, tokens))
