"""Work that a Ctrl-C cannot interrupt halfway: it happens completely, or not at all."""

import _thread
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def unbroken(work: Callable[[], _T], undo: Callable[[_T], object] = lambda _: None) -> _T:
    """Return what `work` returns; if an interrupt comes first, `undo` it, or never begin.

    Python interrupts only the main thread, between any two instructions, so the work runs in another thread.
    """
    turn, finished = threading.Lock(), threading.Lock()
    finished.acquire()
    unwanted: list[bool] = []
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        with turn:
            try:
                if not unwanted:
                    results.append(work())
            except BaseException as error:
                errors.append(error)
            finished.release()

    try:
        try:
            _thread.start_new_thread(run, ())  # an interrupt may also hit the lines of `Thread.start`
        except RuntimeError:  # no thread left on this machine
            run()
        finished.acquire()
        if errors:
            raise errors[0]
        return results[0]
    except BaseException:
        with turn:
            unwanted.append(True)
        for result in results:
            undo(result)
        raise
