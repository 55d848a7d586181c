"""Events of a run as they are written, and a new keeper for one that vanished."""

import math
import time
from collections.abc import Callable, Iterator

from orchestrator.errors import RunError
from orchestrator.events import Stamped
from orchestrator.store import RunFolder, RunReader

_IDLE = 0.03  # seconds between two checks of the folder
_QUIET = 0.1  # the same after a while without events
_LOOK_FOR_KEEPER = 0.5  # seconds between two checks of its lock
_MOST_KEEPERS = 5  # one after the other, each gone within _SHORT_LIFE
_SHORT_LIFE = 10.0  # seconds


def stream(folder: RunFolder, reader: RunReader, adopt: Callable[[], bool]) -> Iterator[Stamped | None]:
    """Yield new events in a run's folder until the run has ended, and None after each check.

    A keeper that vanished is replaced by `adopt`; iteration ends early if the last one could not keep the
    run. Raise RunError if several keepers in a row fail.
    """
    checked, idle, vanished = time.monotonic(), _IDLE, False
    keepers, adopted = 0, -math.inf  # recently started keepers, and when the last one started
    while True:
        news = False
        for stamped in reader.poll():
            news = True
            yield stamped
        yield None
        if reader.ended or (vanished and reader.given_up and not news):
            return
        if news:
            idle, vanished = _IDLE, False
            continue
        if vanished:
            vanished, keepers = False, keepers if time.monotonic() - adopted < _SHORT_LIFE else 0
            if keepers >= _MOST_KEEPERS:
                raise RunError(
                    f"run {folder.run} cannot be kept",
                    why=f"{keepers} keepers ended before they could do anything",
                    hint=f"read {folder.debug_log}",
                )
            if adopt():
                keepers, adopted = keepers + 1, time.monotonic()
        elif time.monotonic() - checked > _LOOK_FOR_KEEPER:
            checked, vanished = time.monotonic(), not folder.has_keeper()
            if vanished:  # it may have written its last event between our checks of the folder and the lock
                continue
        time.sleep(idle)
        idle = min(1.2 * idle, _QUIET)
