"""The person at this terminal, as the caller of a verb."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from orchestrator.cli.desk.out import tell
from orchestrator.errors import OrchestrateError
from orchestrator.render import question
from orchestrator.verbs.caller import Caller


class Person(Caller):
    """Reads stderr, and answers where it is a terminal."""

    def __init__(self) -> None:
        self.masters = question.can_answer()
        self.asks = question.passphrase if self.masters else None

    def tell(self, *lines: str) -> None:
        tell(*lines)

    def warn(self, error: OrchestrateError) -> None:
        from orchestrator.render.errors import block

        tell(*block(error.what, error.why, error.hint, word="warning"))

    def progress(self, title: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        from orchestrator.render.progress import progress

        return progress(title, total)
