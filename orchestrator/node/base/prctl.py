"""Calls of Linux about a process's relatives that Python lacks."""

from __future__ import annotations

import os
from typing import Any

from .fault import NodeError

_SET_PDEATHSIG = 1
_SET_NAME = 15
_SET_CHILD_SUBREAPER = 36

_libc: Any = None


def load() -> None:
    """Load the C library: call it before a fork, so that children neither pay for it nor fail at it."""
    global _libc  # noqa: PLW0603 - loaded once per process
    if _libc is None:
        try:
            import ctypes

            _libc = ctypes.CDLL(None, use_errno=True)
        except (ImportError, OSError) as error:
            raise NodeError(
                "python",
                "the agent's Python cannot call the C library",
                f"its ctypes module does not work: {error}",
                "set `agent_python` to another Python, such as /usr/bin/python3",
            ) from None


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int) -> None:
    """Get `signum` when the parent's forking thread ends; the caller must look for one that is gone."""
    _prctl(_SET_PDEATHSIG, int(signum))


def set_name(name: str) -> None:
    """Name this process in `ps -o comm`; at most 15 bytes are kept."""
    _prctl(_SET_NAME, name.encode()[:15])


def _prctl(option: int, value: Any) -> None:
    load()
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        import ctypes

        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl({option}): {os.strerror(errno)}")
