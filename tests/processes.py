"""What /proc says of the processes of a test."""

from __future__ import annotations

import contextlib
import os


def opened(pid: int) -> list[str]:
    """What a process has open; one file that it closes meanwhile hides no other."""
    found = []
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found
