"""Lists of hosts of other tools, given where hosts.toml is wanted."""

from __future__ import annotations

import re

# `gpu-01`, `gpu-01 slots=4`, `gpu-01 ansible_user=me`, `[group:vars]`, `ansible_user=me`, and YAML's keys.
_LINE = re.compile(
    r"\w[\w.@:,\[\]-]*(?:\s+[\w-]+=\S+)*|\[[\w:.-]+\]|ansible_\w+\s*=.*|---|(?:- )?[\w.@ -]+:(?:\s.*)?"
)


def lists_hosts(text: str | bytes) -> bool:
    """Whether what is no TOML could be a hostfile or an inventory of Ansible's."""
    shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
    lines = [line.partition("#")[0].strip() for line in shown.splitlines()]
    lines = [line for line in lines if line]
    return bool(lines) and all(_LINE.fullmatch(line) for line in lines)
