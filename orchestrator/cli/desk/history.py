"""A run's story as far as it can be read: a warning names what is damaged, and the verb uses the rest."""

from __future__ import annotations

from orchestrator.cli.desk.out import tell
from orchestrator.errors import OrchestrateError
from orchestrator.events import Stamped
from orchestrator.render.errors import block
from orchestrator.store import RunFolder
from orchestrator.store.reader import events_of


def history(folder: RunFolder, *, quiet: bool = False) -> list[Stamped]:
    """The run's events, none when they cannot be read; that is a warning on stderr."""
    try:
        return events_of(folder)
    except OrchestrateError as error:
        if not quiet:
            tell(*block(error.what, error.why, error.hint, word="warning"))
        return []
