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
        one
        for one in found
        if one.code not in silenced and not is_silent(one.code, one.line, sources.get(one.path))
    )


def is_silent(code: str, line: int, source: SourceFile | None) -> bool:
    """Whether a comment on that statement silences the code."""
    if source is None:
        return False
    for part in source.statement(line):
        match = _SILENT.search(part)
        if match is not None:
            named = match["codes"]
            return named is None or code in re.split(r"[\s,]+", named.strip().upper())
    return False
