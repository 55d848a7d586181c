"""From a host entry to a `Target`: the options of ssh_config with their tokens, paths and jumps resolved."""

from __future__ import annotations

import os
import pwd
import re
import socket
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from orchestrator.errors import HostError
from orchestrator.model import Host
from orchestrator.ssh.options import Asked, BadConfigError, Options, first, options_for, split_destination
from orchestrator.ssh.target import Strict, Target

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
    asked = Asked(host.ssh, host.user, host.port, _identity(host), config)
    try:
        target = _resolve(asked, ())
    except BadConfigError as error:
        flag = f"-F {config} " if config else ""
        raise HostError(
            host.name,
            "cannot be resolved from ssh_config",
            kind="config",
            why=str(error),
            hint=f"run: ssh {flag}-G {host.ssh}",
        ) from error
    return replace(target, default_identities=False) if asked.identity else target


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


def _resolve(asked: Asked, seen: tuple[str, ...]) -> Target:
    options = options_for(asked)
    target = target_of(asked, options)
    hops = [_hop(text, asked) for text in _jumps(options)]
    if not hops:
        return target
    # As ssh does: the first hop is reached as its own entry says, the others through the one before.
    if hops[0].alias in (*seen, target.alias):
        path = " -> ".join([*seen, target.alias, hops[0].alias])
        raise BadConfigError(f"ProxyJump runs in a circle: {path}")
    nearest = _resolve(hops[0], (*seen, target.alias))
    others = [target_of(hop, options_for(hop)) for hop in hops[1:]]
    return replace(target, jumps=(*nearest.jumps, replace(nearest, jumps=()), *others))


def _hop(text: str, behind: Asked) -> Asked:
    user, alias, port = split_destination(text)
    return Asked(alias, user, port, config=behind.config)


def _jumps(options: Options) -> list[str]:
    value = first(options, "proxyjump", "none")
    return [] if value.lower() == "none" else [hop for hop in value.split(",") if hop.strip()]


def target_of(asked: Asked, options: Options) -> Target:
    """The target that these options describe, without its jumps."""
    me = pwd.getpwuid(os.getuid()).pw_name  # as ssh does; the environment may say otherwise
    hostname = first(options, "hostname", asked.alias)
    port = int(first(options, "port", "22"))
    user = first(options, "user", me)
    _, bare, _ = split_destination(asked.alias)
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
        config=asked.config,
        port_asked=asked.port is not None,
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
