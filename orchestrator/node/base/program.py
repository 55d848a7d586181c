"""What another program of this machine says."""

from __future__ import annotations

import subprocess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

_SECONDS = 10.0
GPU_SECONDS = 40.0  # nvidia-smi wakes each GPU where the driver lets them sleep (no persistence mode)


def output(argv: List[str], seconds: float) -> str:
    """What a program prints; raise OSError when it is missing, SubprocessError when it fails or is late."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=seconds,
        check=True,
    )
    return done.stdout.decode("utf-8", "replace")


def run_program(argv: List[str], seconds: float = _SECONDS) -> Optional[str]:
    """The same; None when it is missing, fails or takes more than `seconds`."""
    try:
        return output(argv, seconds)
    except (OSError, subprocess.SubprocessError):
        return None
