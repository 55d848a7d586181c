"""A file that lists hosts, of whatever kind it is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from orchestrator.errors import HostfileError, UsageError
from orchestrator.hostlists import ansible, hostfile
from orchestrator.hostlists.candidate import Candidate
from orchestrator.plainfile import read_plain

_MOST = 1 << 20  # bytes


def read(path: Path) -> tuple[Candidate, ...]:
    """A hostfile, or an Ansible inventory as INI or JSON; raise UsageError."""
    try:
        text = _bytes(path).decode("utf-8-sig")
        found = _read(text, path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        why = "it is not text in UTF-8" if isinstance(error, UnicodeError) else why
        raise UsageError(
            f"cannot read {path}", why=why, hint="write a line `host slots=4` for every host"
        ) from error
    if not found:
        raise UsageError(f"{path} names no host", hint="write a line `host slots=4` for every host")
    return found


def _bytes(path: Path) -> bytes:
    """A person may pipe a list, too: `--hostfile /dev/stdin`, `--hostfile <(...)`."""
    if not path.is_fifo():
        return read_plain(path, _MOST, follow=True)
    with path.open("rb") as pipe:
        data = pipe.read(_MOST + 1)
    if len(data) > _MOST:
        raise ValueError(f"it has more than {_MOST >> 20} MB")
    return data


def _read(text: str, path: Path) -> tuple[Candidate, ...]:
    if path.suffix in {".yml", ".yaml"} or text.startswith("---"):
        raise HostfileError(
            f"{path} is YAML, which is not read here",
            hint=f"`ansible-inventory -i {shlex.quote(str(path))} --list > hosts.json`, then"
            " `orchestrate init --hostfile hosts.json`",
        )
    if text.lstrip().startswith("{"):
        return ansible.read_json(text)
    if re.search(r"^\s*\[[^\]\n]+\]\s*(?:#.*)?$|\bansible_[a-z_]+=", text, re.MULTILINE):
        return ansible.read_ini(text)
    return hostfile.read(text)
