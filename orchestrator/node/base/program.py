"""What another program of this machine says."""

from __future__ import annotations

import subprocess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

_SECONDS = 10.0
GPU_SECONDS = 40.0  # nvidia-smi wakes each GPU where the driver lets them sleep (no persistence mode)


def run_program(argv: List[str], seconds: float = _SECONDS) -> Optional[str]:
    """What a program prints; None when it is missing, fails or takes more than `seconds`."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")
