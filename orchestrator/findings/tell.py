"""All findings, without those that a person has silenced."""

from __future__ import annotations

import re
from collections.abc import Collection

from orchestrator.findings import data, programs, settings
from orchestrator.findings.look import Finding, Scene
from orchestrator.findings.sourcefile import SourceFile

RULES = (*programs.RULES, *data.RULES, *settings.RULES)

_SILENT = re.compile(r"#\s*orchestrate:\s*ignore\b\s*(?:\[(?P<codes>[\w\s,]*)\])?")


def find(scene: Scene, silenced: Collection[str] = ()) -> tuple[Finding, ...]:
    """All findings but those with a code of `silenced`, and those that a comment on their line silences."""
    found = dict.fromkeys(one for rule in RULES for one in rule(scene))
    shell = (scene.shell,) if scene.shell is not None else ()
    sources = {source.path: source for source in (*scene.sources, *shell)}
    return tuple(
        one for one in found if one.code not in silenced and not _is_silent(one, sources.get(one.path))
    )


def _is_silent(one: Finding, source: SourceFile | None) -> bool:
    if source is None:
        return False
    for line in source.statement(one.line):
        match = _SILENT.search(line)
        if match is not None:
            named = match["codes"]
            return named is None or one.code in re.split(r"[\s,]+", named.strip().upper())
    return False
