"""The checks that warn or fail, in blocks: what hosts have alike is said once, what one has stands together.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.events import CheckReported, Level
from orchestrator.groups import grouped
from orchestrator.render import fold
from orchestrator.render.errors import block


def problems(checks: Sequence[CheckReported]) -> list[str]:
    """The blocks, failures last: they are what one looks for first."""
    said: list[str] = []
    for level, word in ((Level.WARN, "warning"), (Level.FAIL, "error")):
        of_level = [
            (check.host, (check.check, check.found, check.why, check.hint))
            for check in checks
            if check.level is level
        ]
        for hosts, found in grouped(fold.alike(of_level)).items():
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
