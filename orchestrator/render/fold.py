"""Text that many hosts share, shown once. Pure."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from orchestrator import ranges
from orchestrator.text import cut

MOST = 10  # different texts about hosts that are shown
_LONG = 1000  # characters of a command; it may have 100 kB


def rest(groups: Sequence[tuple[tuple[str, ...], object]]) -> list[str]:
    """Return a line that names the hosts of groups beyond those that are shown."""
    hosts = dict.fromkeys(host for names, _ in groups[MOST:] for host in names)
    return [f"and others on {names(hosts)}: --json shows all of them"] if hosts else []


def alike(messages: Iterable[tuple[str, tuple[str, ...]]]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Group (host, texts) by texts: (hosts, the first's texts).

    The host's own name in them is ignored, except in text that several hosts share literally, even if it
    contains one of their names.
    """
    messages = list(messages)
    times = Counter(texts for _, texts in messages)
    groups: dict[tuple[str, ...], tuple[list[str], tuple[str, ...]]] = {}
    for host, texts in messages:
        name = re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-])")
        key = texts if times[texts] > 1 else tuple(name.sub("\0", text) for text in texts)
        hosts, _ = groups.setdefault(key, ([], texts))
        if host not in hosts:
            hosts.append(host)
    return [(tuple(hosts), texts) for hosts, texts in groups.values()]


def names(hosts: Iterable[str]) -> str:
    """Return `gpu-[01-08], login`."""
    return re.sub(r",(?![^\[]*\])", ", ", ranges.fold(hosts))


def span(values: Sequence[float], text: Callable[[float], str]) -> str:
    """Return `3 s to 5 s`, the least and the greatest value; one if their texts are equal."""
    return " to ".join(dict.fromkeys(map(text, (min(values), max(values)))))


def command(argv: Sequence[str]) -> str:
    """Return a command as one line; --json has all of it."""
    return cut(shlex.join(argv), _LONG)
