"""Work in a process of its own: connections have threads, and a keeper may be forked from us next.

A fork takes over whatever locks other threads hold at that moment, and nobody is there to let go of them.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


def apart(work: Callable[[], bytes]) -> bytes:
    """Return what `work` returns in a child of ours; raise RuntimeError with its traceback when it fails."""
    sys.stdout.flush()
    sys.stderr.flush()
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(said, work)
    os.close(said)
    try:
        with os.fdopen(heard, "rb") as answer:
            data = answer.read()
    finally:
        _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(data.decode(errors="replace") or f"the child ended with {status}")
    return data


def _answer(said: int, work: Callable[[], bytes]) -> None:
    """Never returns."""
    status = 1
    try:
        try:
            data, good = work(), True
        except Exception:
            data, good = traceback.format_exc().encode(), False
        with os.fdopen(said, "wb") as answer:
            answer.write(data)
        status = 0 if good else 1
    finally:
        os._exit(status)
