"""Programs of this machine that are asked something, and have to answer soon."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

_PATIENCE = 20.0


def ask(argv: Sequence[str], errors: str = "replace") -> subprocess.CompletedProcess[str]:
    """What it prints and how it ends; raise OSError, or subprocess.TimeoutExpired."""
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors=errors,
        check=False,
        timeout=_PATIENCE,
    )
