"""Words that many hosts say alike, said once. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from orchestrator import ranges


def alike(said: Iterable[tuple[str, tuple[str, ...]]]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Group (host, texts) by texts: (hosts, the first's texts).

    The host's own name in them is left aside, but for what several say word for word, even where it names one
    of them.
    """
    said = list(said)
    times = Counter(texts for _, texts in said)
    groups: dict[tuple[str, ...], tuple[list[str], tuple[str, ...]]] = {}
    for host, texts in said:
        name = re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-])")
        key = texts if times[texts] > 1 else tuple(name.sub("\0", text) for text in texts)
        hosts, _ = groups.setdefault(key, ([], texts))
        if host not in hosts:
            hosts.append(host)
    return [(tuple(hosts), texts) for hosts, texts in groups.values()]


def names(hosts: Iterable[str]) -> str:
    """`gpu-[01-08], login`"""
    return re.sub(r",(?![^\[]*\])", ", ", ranges.fold(hosts))
