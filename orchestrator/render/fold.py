"""What many hosts say alike, said once. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator import ranges


def alike(said: Iterable[tuple[str, tuple[str, ...]]]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Group (host, texts) by texts, the host's own name in them left aside: (hosts, the first's texts)."""
    groups: dict[tuple[str, ...], tuple[list[str], tuple[str, ...]]] = {}
    for host, texts in said:
        hosts, _ = groups.setdefault(tuple(_nameless(host, text) for text in texts), ([], texts))
        if host not in hosts:
            hosts.append(host)
    return [(tuple(hosts), texts) for hosts, texts in groups.values()]


def names(hosts: Iterable[str]) -> str:
    """`gpu-[01-08], login`"""
    return re.sub(r",(?![^\[]*\])", ", ", ranges.fold(hosts))


def _nameless(host: str, text: str) -> str:
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "\0", text) if host else text
