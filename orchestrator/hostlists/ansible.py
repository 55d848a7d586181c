"""Ansible's inventories: the INI form, and what `ansible-inventory --list` prints of any form."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from orchestrator.hostlists.candidate import Candidate, login

_SECTION = re.compile(r"\[([^\]:]+)(?::(vars|children))?\]")
_RANGE = re.compile(r"\[([0-9]+|[A-Za-z]):([0-9]+|[A-Za-z])\]")


def read_ini(text: str) -> tuple[Candidate, ...]:
    """Raise ValueError, worded for the user, for a line that cannot be read."""
    hosts: dict[str, dict[str, str]] = {}
    groups: dict[str, dict[str, None]] = {}
    group_vars: dict[str, dict[str, str]] = {}
    section, kind = "ungrouped", ""
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.strip()
        if not content or content[0] in "#;":
            continue
        if header := _SECTION.fullmatch(content.partition("#")[0].strip()):
            section, kind = header[1], header[2] or ""
            continue
        if kind == "vars":
            name, _, value = content.partition("=")
            group_vars.setdefault(section, {})[name.strip()] = value.strip().strip("\"'")
            continue
        try:
            words = shlex.split(content, comments=True)
            names = _expand(words[0])
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        members = groups.setdefault(section, {})
        for name in names:
            members[name] = None
            if not kind:
                pairs = (word.partition("=") for word in words[1:])
                hosts.setdefault(name, {}).update({key: value for key, _, value in pairs})
    memberships = {name: _groups_of(name, groups) for name in hosts}
    return tuple(
        _candidate(name, _variables(own, memberships[name], group_vars), memberships[name])
        for name, own in hosts.items()
    )


class _Meta(msgspec.Struct, frozen=True):
    hostvars: dict[str, dict[str, Any]] = {}


class _Group(msgspec.Struct, frozen=True):
    hosts: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


def read_json(text: str) -> tuple[Candidate, ...]:
    """Raise ValueError, worded for the user, for what is no such list."""
    try:
        parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        meta = msgspec.json.decode(parts.pop("_meta", msgspec.Raw(b"{}")), type=_Meta)
        listed = {name: msgspec.json.decode(part, type=_Group) for name, part in parts.items()}
    except msgspec.DecodeError as error:
        raise ValueError(f"it is not what `ansible-inventory --list` prints ({error})") from error
    groups = {name: dict.fromkeys((*group.hosts, *group.children)) for name, group in listed.items()}
    names = dict.fromkeys(name for group in listed.values() for name in group.hosts)
    return tuple(_candidate(name, meta.hostvars.get(name, {}), _groups_of(name, groups)) for name in names)


def _candidate(name: str, variables: Mapping[str, Any], groups: frozenset[str]) -> Candidate:
    def said(*keys: str) -> str:
        return next((str(variables[key]) for key in keys if variables.get(key)), "")

    if said("ansible_connection") == "local":
        return Candidate(name, "local", groups=groups)
    host = said("ansible_host", "ansible_ssh_host") or name
    user = said("ansible_user", "ansible_ssh_user")
    target = login(host, user, said("ansible_port", "ansible_ssh_port"))
    key = said("ansible_ssh_private_key_file", "ansible_private_key_file")
    return Candidate(name, target, groups=groups, identity=key or None)


def _groups_of(member: str, groups: Mapping[str, Mapping[str, None]]) -> frozenset[str]:
    """Every group that a host is in, by way of others too."""
    found: set[str] = set()
    new = {name for name, members in groups.items() if member in members}
    while new:
        found |= new
        new = {name for name, members in groups.items() if found & members.keys()} - found
    return frozenset(found)


def _variables(
    own: Mapping[str, str], groups: frozenset[str], of_groups: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """The host's own win over those of its groups, these over those of all."""
    variables = dict(of_groups.get("all", {}))
    for name, values in of_groups.items():
        if name in groups and name != "all":
            variables.update(values)
    return {**variables, **own}


def _expand(pattern: str) -> list[str]:
    pieces = _RANGE.split(pattern)
    choices: list[list[str]] = [[pieces[0]]]
    for low, high, after in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        choices += [_numbers(low, high), [after]]
    return ["".join(parts) for parts in itertools.product(*choices)]


def _numbers(low: str, high: str) -> list[str]:
    if low.isdigit() and high.isdigit() and int(high) - int(low) < 4096:
        return [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    if low.isalpha() and high.isalpha():
        return [chr(code) for code in range(ord(low), ord(high) + 1)]
    raise ValueError(f"[{low}:{high}] is not a range")
