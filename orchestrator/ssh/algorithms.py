"""Which algorithms a connection may use: what the client has, less what ssh_config rules out.

ssh_config's lists say which ones, not in what order: ours is by their cost for the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.ssh.tokens import wildcards

CERTIFIED = "-cert-v01@openssh.com"
_RSA = ("rsa-sha2-512", "rsa-sha2-256")  # how a key of type ssh-rsa signs


@dataclass(frozen=True)
class Algorithms:
    """The lists of ssh_config, as written there; an empty one allows what the client has."""

    kex: str = ""
    ciphers: str = ""
    macs: str = ""
    host_keys: str = ""
    user_keys: str = ""


@dataclass(frozen=True)
class Family:
    """One thing to be agreed on: its name, its keyword, and where a key exchange's lists hold it."""

    noun: str
    keyword: str
    field: str  # of `Algorithms`
    lists: tuple[str, ...]  # of paramiko's reading of the server's offer


FAMILIES = (
    Family("key exchange", "KexAlgorithms", "kex", ("kex_algo_list",)),
    Family("host key", "HostKeyAlgorithms", "host_keys", ("server_key_algo_list",)),
    Family("cipher", "Ciphers", "ciphers", ("client_encrypt_algo_list", "server_encrypt_algo_list")),
    Family("MAC", "MACs", "macs", ("client_mac_algo_list", "server_mac_algo_list")),
)


@dataclass(frozen=True)
class Disagreement:
    """Nothing is left of one family; `theirs` is None when the server was not even asked."""

    family: Family
    ours: tuple[str, ...]  # what the client has
    allowed: tuple[str, ...]  # what ssh_config leaves of it
    theirs: tuple[str, ...] | None = None

    @property
    def excluded(self) -> tuple[str, ...]:
        """What both sides have, and only ssh_config rules out."""
        return tuple(name for name in self.theirs or () if name in self.ours)


@lru_cache(maxsize=256)  # every host of a cluster has the same lists, as a rule
def allowed(spec: str, available: tuple[str, ...]) -> tuple[str, ...]:
    """The available ones that a list of ssh_config allows: names, patterns, or changes by + - ^."""
    sign, patterns = _read(spec)
    if sign in ("+", "^") or not spec:
        return available
    return tuple(name for name in available if _listed(patterns, name) != (sign == "-"))


def permits(spec: str, key_type: str) -> bool:
    """Whether a list of signature algorithms lets a key of this type sign."""
    suffix = CERTIFIED if key_type.endswith(CERTIFIED) else ""
    plain = key_type.removesuffix(suffix)
    names = tuple(name + suffix for name in (_RSA if plain == "ssh-rsa" else (plain,)))
    return bool(allowed(spec, names))


def disagreement(
    specs: Algorithms, ours: Mapping[str, Sequence[str]], offer: Mapping[str, Sequence[str]]
) -> Disagreement | None:
    """What the two sides cannot agree on: the first family, as the key exchange would meet it."""
    for family in FAMILIES:
        have = tuple(ours[family.field])
        left = allowed(getattr(specs, family.field), have)
        for name in family.lists:
            if not set(left) & set(offer[name]):
                theirs = tuple(word for word in offer[name] if not _is_flag(word))
                return Disagreement(family, have, left, theirs)
    return None


def nothing_allowed(specs: Algorithms, ours: Mapping[str, Sequence[str]]) -> Disagreement | None:
    """A family of which ssh_config leaves nothing that the client has."""
    for family in FAMILIES:
        have = tuple(ours[family.field])
        if not allowed(getattr(specs, family.field), have):
            return Disagreement(family, have, ())
    return None


def preferred(head: Iterable[str], available: Sequence[str]) -> tuple[str, ...]:
    """The available ones, those of `head` first."""
    first = [name for name in dict.fromkeys(head) if name in available]
    return (*first, *(name for name in available if name not in first))


def preferred_host_keys(types: Iterable[str], available: Sequence[str]) -> tuple[str, ...]:
    """The host key algorithms, those first whose keys can be checked against known_hosts."""
    return preferred((name for kind in types for name in (_RSA if kind == "ssh-rsa" else (kind,))), available)


def _read(spec: str) -> tuple[str, tuple[str, ...]]:
    sign = spec[0] if spec[:1] in ("+", "-", "^") else ""
    return sign, tuple(word.strip() for word in spec.removeprefix(sign).split(","))


def _listed(patterns: Sequence[str], name: str) -> bool:
    return any(wildcards(pattern).fullmatch(name) for pattern in patterns)


def _is_flag(word: str) -> bool:
    """Extensions are negotiated among the key exchanges without being any."""
    return word.startswith(("ext-info-", "kex-strict-"))
