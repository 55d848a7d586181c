"""All findings, without those that a person has silenced."""

from __future__ import annotations

import re
from collections.abc import Collection

from orchestrator.findings import data, programs, settings
from orchestrator.findings.look import Finding, Scene

RULES = (*programs.RULES, *data.RULES, *settings.RULES)

_SILENT = re.compile(r"#\s*orchestrate:\s*ignore\b(?:\[(?P<codes>[\w\s,]*)\])?")


def find(scene: Scene, silenced: Collection[str] = ()) -> tuple[Finding, ...]:
    """All findings but those with a code of `silenced`, and those that a comment on their line silences."""
    found = dict.fromkeys(one for rule in RULES for one in rule(scene))
    texts = {source.path: source.text.split("\n") for source in scene.sources}
    return tuple(one for one in found if one.code not in silenced and not _is_silent(one, texts))


def _is_silent(one: Finding, texts: dict[str, list[str]]) -> bool:
    lines = texts.get(one.path, [])
    match = _SILENT.search(lines[one.line - 1]) if 0 < one.line <= len(lines) else None
    if match is None:
        return False
    return match["codes"] is None or one.code in re.split(r"[\s,]+", match["codes"].strip())
