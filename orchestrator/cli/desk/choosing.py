"""The hosts that `init` begins with: named ones, or a file's; and the names of ssh_config."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import ranges
from orchestrator.config.mistakes import Wrong
from orchestrator.config.targets import read_name, read_target
from orchestrator.errors import HostError, UsageError
from orchestrator.model import Host
from orchestrator.text import endpoint

_NAMES = "`orchestrate init gpu-01 gpu-02`, with your own hosts' names"
_HINT = "write a line `host slots=4` for every host"
_SECONDS = 60.0  # for Ansible, which may ask a cloud
_DEEPEST = 16  # as ssh does with Include
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


def choose(words: Sequence[str], hostfile: str | None, ssh_config: str | None) -> tuple[Candidate, ...]:
    """The hosts that are meant; raise UsageError."""
    if hostfile is not None:
        return _narrowed(read(Path(hostfile)), words, f"in {hostfile}")
    if words:
        return _of_words(words)
    file = Path(ssh_config or "~/.ssh/config").expanduser()
    names = ranges.fold(aliases(file))
    why = f"{file} names {names}" if names else "no word names one"
    raise UsageError("init needs hosts", why=why, hint=_NAMES)


def host_of(candidate: Candidate, ssh_config: str | None) -> Host:
    """Make the host as it is logged in to; its address is not known yet. Raise Wrong."""
    target = read_target(candidate.ssh)
    key = candidate.identity  # relative: to where the command runs, and hosts.toml may go elsewhere
    return Host(
        read_name(candidate.name),
        ssh=target.host,
        address=target.host,
        user=target.user,
        port=target.port,
        identity=key if key is None or key.startswith("~") else str(Path(key).absolute()),
        ssh_config=ssh_config,
    )


def hostname(host: Host) -> str:
    """Return what ssh connects to for this host; its own name where that cannot be found out."""
    if host.is_local:
        return "127.0.0.1"
    from orchestrator.ssh.resolve import resolve

    try:
        name = resolve(host).hostname
    except HostError:
        name = host.ssh
    return name.removesuffix(".")  # of a name that is complete; no address in hosts.toml has it


def _of_words(words: Sequence[str]) -> tuple[Candidate, ...]:
    candidates: dict[str, Candidate] = {}
    for word in words:
        if Path(word).is_file():
            hint = f"write --hostfile {word}"
            raise UsageError(f"{word} is a file here", why="the words are hosts", hint=hint)
        try:
            for name in ranges.expand_all(word):
                candidates[name] = Candidate(read_name(read_target(name).host), name)
        except (ValueError, Wrong) as error:
            raise UsageError(f"a host {error}", hint=_NAMES) from error
    if not candidates:
        raise UsageError("init needs hosts", why="the words name none", hint=_NAMES)
    return tuple(candidates.values())


def _narrowed(candidates: tuple[Candidate, ...], words: Sequence[str], where: str) -> tuple[Candidate, ...]:
    """Choose those that the words name, by host or by group; all without words."""
    if not words:
        return candidates
    try:
        chosen = {name for word in words for name in ranges.expand_all(word)}
    except ValueError as error:
        raise UsageError(f"a host {error}", hint=_NAMES) from error
    names = {name for candidate in candidates for name in (candidate.name, *candidate.groups)}
    if unknown := chosen - names:
        why = f"it has {ranges.fold(names)}"
        raise UsageError(f"{ranges.fold(unknown)} is not {where}", why=why, hint="name some of these")
    return tuple(each for each in candidates if chosen & {each.name, *each.groups})


def read(path: Path) -> tuple[Candidate, ...]:
    """Read a hostfile or an inventory of Ansible's, which may come through a pipe; raise UsageError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("{"):
            candidates = of_ansible(text)
        elif _OF_ANSIBLE.search(text):
            candidates = of_ansible(_listed(path))
        else:
            candidates = of_hostfile(text)
    except (OSError, ValueError) as error:
        why = "it is not text in UTF-8" if isinstance(error, UnicodeError) else str(error)
        raise UsageError(f"cannot read {path}", why=why, hint=_HINT) from error
    if not candidates:
        raise UsageError(f"{path} names no host", hint=_HINT)
    return candidates


def of_hostfile(text: str) -> tuple[Candidate, ...]:
    """Read `host slots=4`, `host:4`, or a line for every slot; raise ValueError for another line."""
    tasks: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not (words := line.partition("#")[0].split()):
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


def of_ansible(text: str) -> tuple[Candidate, ...]:
    """Read what `ansible-inventory --list` prints; raise ValueError."""
    try:
        groups = json.loads(text)
        variables = groups.pop("_meta", {}).get("hostvars", {})
        names = dict.fromkeys(name for group in groups.values() for name in group.get("hosts", ()))
        return tuple(_of_ansible(name, variables.get(name, {}), groups) for name in names)
    except (AttributeError, TypeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"it is not what `ansible-inventory --list` prints ({error})") from error


def _of_ansible(name: str, variables: Mapping[str, Any], groups: Mapping[str, Any]) -> Candidate:
    members = {group for group, about in groups.items() if name in about.get("hosts", ())}
    while more := {g for g, about in groups.items() if members & {*about.get("children", ())}} - members:
        members |= more

    def value(*keys: str) -> str:
        return next((str(variables[key]) for key in keys if variables.get(key)), "")

    if value("ansible_connection") == "local":
        return Candidate(name, "local", groups=frozenset(members))
    user = value("ansible_user", "ansible_ssh_user")
    place = endpoint(
        value("ansible_host", "ansible_ssh_host") or name, value("ansible_port", "ansible_ssh_port")
    )
    key = value("ansible_ssh_private_key_file", "ansible_private_key_file") or None
    return Candidate(name, f"{user}@{place}" if user else place, groups=frozenset(members), identity=key)


def aliases(file: Path) -> tuple[str, ...]:
    """The names of an ssh_config and its includes, each once, no patterns; () if it is unreadable."""
    return tuple(dict.fromkeys(_aliases(file, 0)))


def _aliases(file: Path, depth: int) -> Iterator[str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for match in filter(None, map(_SSH_LINE.fullmatch, lines)):
        try:
            words = shlex.split(match[2], comments=True)
        except ValueError:
            continue
        if match[1].lower() == "host":
            yield from (word for word in words if not re.search(r"[*?!]", word))
        elif match[1].lower() == "include" and depth < _DEEPEST:
            for word in words:  # a relative path is below ~/.ssh, wherever the file is that includes it
                pattern = Path("~/.ssh").expanduser() / Path(word).expanduser()
                for path in sorted(Path("/").glob(str(pattern).lstrip("/"))):
                    yield from _aliases(path, depth + 1)
