"""The checks that warn or fail, in blocks: what hosts have alike is said once, what one has stands together.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from orchestrator.events import CheckReported, Level
from orchestrator.render import fold
from orchestrator.render.errors import block

Said: TypeAlias = tuple[str, tuple[str, ...]]  # a host, and its texts


def problems(checks: Sequence[CheckReported]) -> list[str]:
    """The blocks, failures last: they are what one looks for first."""
    said: list[str] = []
    for level, word in ((Level.WARN, "warning"), (Level.FAIL, "error")):
        of_level = [(check.host, _texts(check)) for check in checks if check.level is level]
        of_hosts: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for hosts, texts in _alike(of_level):
            of_hosts.setdefault(hosts, []).append(texts)
        for hosts, found in of_hosts.items():
            said += _blocks(fold.names(hosts), found, word)
    return said


def _blocks(names: str, found: Sequence[tuple[str, ...]], word: str) -> list[str]:
    if len(found) == 1:
        slug, what, why, hint = found[0]
        return block(f"{names}: {slug}: {what}", why, hint, word=word)
    lines = block(f"{names}: {len(found)} {word}s", word=word)
    for slug, what, why, hint in found:
        lines += [f"  {line}" for line in block(what, why, hint, word=slug)]
    return lines


def _alike(said: Sequence[Said]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """What several hosts say word for word is one thing, even where it names one of them."""
    times = Counter(texts for _, texts in said)
    same: dict[tuple[str, ...], list[str]] = {}
    for host, texts in said:
        if times[texts] > 1:
            same.setdefault(texts, []).append(host)
    found = [(tuple(dict.fromkeys(hosts)), texts) for texts, hosts in same.items()]
    return [*found, *fold.alike((host, texts) for host, texts in said if times[texts] == 1)]


def _texts(check: CheckReported) -> tuple[str, ...]:
    return check.check, check.found, check.why, check.hint
