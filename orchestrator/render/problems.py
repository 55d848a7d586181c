"""The checks that warn or fail, in blocks: what hosts have alike is said once, what one has stands together.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from orchestrator.events import CheckReported, Level
from orchestrator.groups import grouped
from orchestrator.render import fold
from orchestrator.render.errors import block

_PORT = re.compile(r"(\bits task port |^(?=\d+ taken$))(\d{1,5})\b")

Group: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]  # hosts, and the texts that they share


def problems(checks: Sequence[CheckReported]) -> list[str]:
    """The blocks, failures last: they are what one looks for first."""
    said: list[str] = []
    for level, word in ((Level.WARN, "warning"), (Level.FAIL, "error")):
        of_level = [(check.host, _texts(check)) for check in checks if check.level is level]
        for hosts, found in grouped(_but_for_ports(fold.alike(of_level))).items():
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


def _but_for_ports(groups: Sequence[Group]) -> list[Group]:
    """Take the first host's port as the example where only task ports differ."""
    folded = []
    for alike in grouped((_portless(texts), (hosts, texts)) for hosts, texts in groups).values():
        hosts, texts = min(alike)  # whose name is shown first
        if len(alike) > 1:
            slug, what, why, hint = texts
            what = _PORT.sub(rf"\1\2 on {hosts[0]}", what).replace("task port ", "task port, ")
            texts = (slug, what, why, f"{hint}; likewise the task ports of the others")
        folded.append((tuple(host for one, _ in alike for host in one), texts))
    return folded


def _portless(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return a problem without the task port that it is about."""
    port = _PORT.search(texts[1])
    if port is None:
        return texts
    return tuple(re.sub(rf"\b{port[2]}\b", "\0", text) for text in texts)


def _texts(check: CheckReported) -> tuple[str, ...]:
    return check.check, check.found, check.why, check.hint
