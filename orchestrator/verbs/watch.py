"""Events of a run as they are written, and another keeper for one that vanished."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from orchestrator.errors import RunError
from orchestrator.events import Stamped
from orchestrator.store import RunFolder, RunReader

_IDLE = 0.03  # seconds between two looks at the folder
_QUIET = 0.1  # the same where there has been nothing new for a while
_LOOK_FOR_KEEPER = 0.5  # seconds between two looks at its lock
_MOST_KEEPERS = 5  # one after the other, each gone within _SHORT_LIFE
_SHORT_LIFE = 10.0  # seconds


def stream(folder: RunFolder, reader: RunReader, adopt: Callable[[], bool]) -> Iterator[Stamped | None]:
    """Yield what is new in a run's folder until the run has ended, and None after each look.

    A keeper that vanished is replaced by `adopt`; this ends early when the last one could not keep it.
    Raise RunError when keepers come to nothing.
    """
    checked, idle, gone = time.monotonic(), _IDLE, False
    keepers, adopted = 0, -math.inf  # those that were started one after the other, and when the last one was
    while True:
        news = False
        for stamped in reader.poll():
            news = True
            yield stamped
        yield None
        if reader.ended or (gone and reader.left and not news):
            return
        if news:
            idle, gone = _IDLE, False
            continue
        if gone:
            gone, keepers = False, keepers if time.monotonic() - adopted < _SHORT_LIFE else 0
            if keepers >= _MOST_KEEPERS:
                raise RunError(
                    f"run {folder.run} cannot be kept",
                    why=f"{keepers} keepers ended before they could do anything",
                    hint=f"see {folder.debug_log}",
                )
            if adopt():
                keepers, adopted = keepers + 1, time.monotonic()
        elif time.monotonic() - checked > _LOOK_FOR_KEEPER:
            checked, gone = time.monotonic(), not folder.has_keeper()
            if gone:  # it may have written its last event between our look at the folder and at the lock
                continue
        time.sleep(idle)
        idle = min(1.2 * idle, _QUIET)
