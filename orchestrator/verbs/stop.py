"""`stop`: ask the run's keeper, or become it."""

from __future__ import annotations

import shlex
import time

from orchestrator.errors import OrchestrateError, RunError
from orchestrator.events import RunEnded
from orchestrator.model import Order
from orchestrator.requests import StopRequest
from orchestrator.run.view import View
from orchestrator.store import RunFolder, RunReader
from orchestrator.store.standing import standing
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import adopt

_AGAIN = 0.05  # seconds
_DEAF = 15.0  # seconds for a keeper to answer, or to go


def order_of(request: StopRequest) -> Order:
    return Order.KILL if request.now else Order.STOP


def stood(folder: RunFolder) -> tuple[View, int]:
    """Return the run's state and the bytes of events before it; nothing where they are damaged."""
    try:
        return standing(folder)
    except OrchestrateError:
        return View(), 0


def reach_keeper(folder: RunFolder, want: Order, known: int, caller: Caller) -> None:
    """Ask the run's keeper, or become it; neither for a run that ended behind the first `known` bytes.

    Raise RunError for a keeper that does not answer.
    """
    deadline = time.monotonic() + _DEAF
    while not folder.ask_keeper(want):
        if time.monotonic() > deadline:
            raise RunError(
                f"the keeper of run {folder.run} is alive but does not answer",
                why=f"{folder.control} has not led to it for {_DEAF:.0f} s",
                hint=f"`fuser -k {shlex.quote(str(folder.lock))}` on its machine ends it; then try again",
            )
        # A keeper writes the end before it goes.
        since = RunReader(folder, wanted=lambda _task: False, start=known)
        if not folder.has_keeper() and any(isinstance(one.event, RunEnded) for one in since.poll()):
            return
        # Whoever is faster than we are may have become its keeper, without knowing of a stop.
        if adopt(folder, caller, stop=want):
            return
        time.sleep(_AGAIN)
