"""`stop`: ask the run's keeper, or become it."""

import shlex
import time

from orchestrator.errors import RunError
from orchestrator.events import RunEnded
from orchestrator.model import Order
from orchestrator.store import RunFolder, RunReader
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import adopt

_AGAIN = 0.05  # seconds
_PATIENCE = 15.0  # seconds for a keeper to respond, or to exit


def reach_keeper(folder: RunFolder, order: Order, start: int, caller: Caller) -> None:
    """Ask the run's keeper, or become it; neither for a run that ended after the first `start` bytes.

    Raise RunError for a keeper that does not respond.
    """
    deadline = time.monotonic() + _PATIENCE
    while not folder.ask_keeper(order):
        if time.monotonic() > deadline:
            raise RunError(
                f"the keeper of run {folder.run} is alive but does not answer",
                why=f"{folder.control} did not reach it for {_PATIENCE:.0f} s",
                hint=f"`fuser -k {shlex.quote(str(folder.lock))}` on its machine ends it; then try again",
            )
        # A keeper writes the end before it exits.
        since = RunReader(folder, shows=lambda _task: False, start=start)
        if not folder.has_keeper() and any(isinstance(stamped.event, RunEnded) for stamped in since.poll()):
            return
        # A faster process may have become its keeper without this request.
        if adopt(folder, caller, stop=order):
            return
        time.sleep(_AGAIN)
