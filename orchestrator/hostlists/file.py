"""A file that lists hosts, of whatever kind it is."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.errors import HostfileError, UsageError
from orchestrator.hostlists import ansible, hostfile
from orchestrator.hostlists.candidate import Candidate
from orchestrator.plainfile import read_plain

_MOST = 1 << 20  # bytes


def read(path: Path) -> tuple[Candidate, ...]:
    """A hostfile, or an Ansible inventory as INI or JSON; raise UsageError."""
    try:
        text = read_plain(path, _MOST, follow=True).decode()
        found = _read(text, path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot read {path}", why=why, hint="write a line `host slots=4` for every host"
        ) from error
    if not found:
        raise UsageError(f"{path} names no host", hint="write a line `host slots=4` for every host")
    return found


def _read(text: str, path: Path) -> tuple[Candidate, ...]:
    if path.suffix in {".yml", ".yaml"} or text.startswith("---"):
        raise HostfileError(
            f"{path} is YAML, which is not read here",
            hint=f"`ansible-inventory -i {path} --list > hosts.json`, then"
            " `orchestrate init --hostfile hosts.json`",
        )
    if text.lstrip().startswith("{"):
        return ansible.read_json(text)
    if re.search(r"^\s*\[[^\]\n]+\]\s*(?:#.*)?$|\bansible_[a-z_]+=", text, re.MULTILINE):
        return ansible.read_ini(text)
    return hostfile.read(text)
