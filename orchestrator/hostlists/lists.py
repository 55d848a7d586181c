"""Lists of hosts that people have: hostfiles, Ansible's inventories, the names of ssh_config."""

from __future__ import annotations

import glob
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.errors import UsageError
from orchestrator.plainfile import read_plain
from orchestrator.text import endpoint

_MOST = 1 << 20  # bytes
_SECONDS = 60.0  # for Ansible, which may ask a cloud
_DEEPEST = 16  # as ssh does with Include
_HINT = "write a line `host slots=4` for every host"
_COLON = re.compile(r"([^:]+):([0-9]+)")
_SLOTS = re.compile(r"(?:slots|max_slots|max-slots)=([0-9]+)", re.IGNORECASE)
_OF_ANSIBLE = re.compile(r"^\s*\[[^\]\n]+\]\s*(?:#.*)?$|\bansible_[a-z_]+=|\A---|^\w+:\s*$", re.MULTILINE)
_SSH_LINE = re.compile(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*)")


@dataclass(frozen=True)
class Candidate:
    """A host that some list names; `ssh` is what `ssh` would be given, a port behind a colon."""

    name: str
    ssh: str
    tasks: int = 1
    groups: frozenset[str] = frozenset()
    identity: str | None = None  # a private key, where the list names one


def read(path: Path) -> tuple[Candidate, ...]:
    """Read a hostfile or an inventory of Ansible's; raise UsageError."""
    try:
        text = _bytes(path).decode("utf-8-sig")
        if text.lstrip().startswith("{"):
            candidates = of_ansible(text)
        elif _OF_ANSIBLE.search(text):
            candidates = of_ansible(_listed(path))
        else:
            candidates = of_hostfile(text)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        why = "it is not text in UTF-8" if isinstance(error, UnicodeError) else why
        raise UsageError(f"cannot read {path}", why=why, hint=_HINT) from error
    if not candidates:
        raise UsageError(f"{path} names no host", hint=_HINT)
    return candidates


def _bytes(path: Path) -> bytes:
    """Read a file, or a list that a person pipes: `--hostfile /dev/stdin`, `--hostfile <(...)`."""
    if not path.is_fifo():
        return read_plain(path, _MOST, follow=True)
    with path.open("rb") as pipe:
        data = pipe.read(_MOST + 1)
    if len(data) > _MOST:
        raise ValueError(f"it has more than {_MOST >> 20} MB")
    return data


def of_hostfile(text: str) -> tuple[Candidate, ...]:
    """Read `host slots=4`, `host:4`, or a line for every slot; raise ValueError for another line."""
    tasks: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host, slots = words[0], 0
        if colon := _COLON.fullmatch(host):
            host, slots = colon[1], int(colon[2])
        for word in words[1:]:
            if (match := _SLOTS.fullmatch(word)) is None:
                raise ValueError(f"line {number} is not `host slots=4`: {line.strip()}")
            slots = slots or int(match[1])
        tasks[host] = tasks.get(host, 0) + (slots or 1)
    return tuple(Candidate(host.rpartition("@")[2], host, count) for host, count in tasks.items())


def _listed(path: Path) -> str:
    """Have Ansible itself read an inventory, of whatever kind it is."""
    argv = ["ansible-inventory", "-i", str(path), "--list"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        raise UsageError(
            f"{path} is an inventory of Ansible's, and Ansible is not installed here",
            hint=f"run `{shlex.join(argv)} > hosts.json` where it is, then use --hostfile hosts.json",
        ) from None
    except subprocess.TimeoutExpired:
        raise ValueError("ansible-inventory did not end") from None
    if done.returncode:
        raise ValueError(done.stderr.decode(errors="replace").strip()[-500:] or "ansible-inventory failed")
    return done.stdout.decode()


class _Meta(msgspec.Struct, frozen=True):
    hostvars: dict[str, dict[str, Any]] = {}


class _Group(msgspec.Struct, frozen=True):
    hosts: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


def of_ansible(text: str) -> tuple[Candidate, ...]:
    """Read what `ansible-inventory --list` prints; raise ValueError."""
    try:
        parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        meta = msgspec.json.decode(parts.pop("_meta", msgspec.Raw(b"{}")), type=_Meta)
        groups = {name: msgspec.json.decode(part, type=_Group) for name, part in parts.items()}
    except msgspec.DecodeError as error:
        raise ValueError(f"it is not what `ansible-inventory --list` prints ({error})") from error
    names = dict.fromkeys(name for group in groups.values() for name in group.hosts)
    return tuple(_candidate(name, meta.hostvars.get(name, {}), _groups_of(name, groups)) for name in names)


def _groups_of(host: str, groups: Mapping[str, _Group]) -> frozenset[str]:
    """Name every group that a host is in, by way of others too."""
    members = {name for name, group in groups.items() if host in group.hosts}
    while more := {name for name, group in groups.items() if members & {*group.children}} - members:
        members |= more
    return frozenset(members)


def _candidate(name: str, variables: Mapping[str, Any], groups: frozenset[str]) -> Candidate:
    def value(*keys: str) -> str:
        return next((str(variables[key]) for key in keys if variables.get(key)), "")

    if value("ansible_connection") == "local":
        return Candidate(name, "local", groups=groups)
    user = value("ansible_user", "ansible_ssh_user")
    place = endpoint(
        value("ansible_host", "ansible_ssh_host") or name, value("ansible_port", "ansible_ssh_port")
    )
    key = value("ansible_ssh_private_key_file", "ansible_private_key_file")
    return Candidate(name, f"{user}@{place}" if user else place, groups=groups, identity=key or None)


def aliases(file: Path) -> tuple[str, ...]:
    """The names of an ssh_config and its includes, each once, no patterns; () if it is unreadable."""
    return tuple(dict.fromkeys(_aliases(file, 0)))


def _aliases(file: Path, depth: int) -> Iterator[str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for match in filter(None, map(_SSH_LINE.fullmatch, lines)):
        keyword, words = match[1].lower(), _words(match[2])
        if keyword == "host":
            yield from (word for word in words if not re.search(r"[*?!]", word))
        elif keyword == "include" and depth < _DEEPEST:
            for word in words:  # a relative path is below ~/.ssh, wherever the file is that includes it
                pattern = Path("~/.ssh").expanduser() / Path(word).expanduser()
                for path in sorted(glob.glob(str(pattern))):  # noqa: PTH207 - the pattern may be absolute
                    yield from _aliases(Path(path), depth + 1)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return []
