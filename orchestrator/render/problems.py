"""The checks that warn or fail, each as a block; what hosts have alike is said once. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.events import CheckReported, Level
from orchestrator.render import fold
from orchestrator.render.errors import block


def problems(checks: Sequence[CheckReported]) -> list[str]:
    """The blocks, failures last: they are what one looks for first."""
    said: list[str] = []
    for level, word in ((Level.WARN, "warning"), (Level.FAIL, "error")):
        of_level = ((check.host, _texts(check)) for check in checks if check.level is level)
        for hosts, (slug, what, why, hint) in fold.alike(of_level):
            said += block(f"{fold.names(hosts)}: {slug}: {what}", why, hint, word=word)
    return said


def _texts(check: CheckReported) -> tuple[str, ...]:
    return check.check, check.found, check.why, check.hint
