"""The files that a process has open."""

from __future__ import annotations

import os
from typing import Collection

_OPEN = "/proc/self/fd"
_OPEN_ELSEWHERE = "/dev/fd"  # on macOS, which a controller may run


def close_others(kept: Collection[int]) -> None:
    """Close every descriptor but these, so that whoever is at the far end sees it go."""
    for fd in [int(name) for name in os.listdir(_OPEN if os.path.isdir(_OPEN) else _OPEN_ELSEWHERE)]:
        if fd not in kept:
            try:
                os.close(fd)
            except OSError:
                pass  # the one that listed them
