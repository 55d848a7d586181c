"""The uv that came with this installation: to resolve packages here, and to be sent to hosts."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import ClusterError, HostError, UsageError
from orchestrator.node.stock.uv import environment, tail

# Its search asks sysconfig, which before Python 3.12 shows a second thread what the first has half filled in.
_finding = threading.Lock()


def binary() -> Path:
    """The program; raise UsageError when the installation lacks it."""
    try:
        from uv import find_uv_bin  # noqa: PLC0415 - only those who make environments need it

        with _finding:
            return Path(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise UsageError(
            "uv is missing from this installation",
            why=str(error),
            hint="install orchestrate again with pip: uv is one of its dependencies",
        ) from error


def run(what: str, arguments: Sequence[str]) -> str:
    """Return what uv prints; raise ClusterError ("cannot WHAT") with uv's last lines when it fails."""
    done = subprocess.run(
        [str(binary()), *arguments],
        env=environment(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise ClusterError(
            f"cannot {what}",
            why=tail(done.stderr),
            hint="mend what uv says; for an index of your own set `index` under [env], or UV_DEFAULT_INDEX",
        )
    return done.stdout


def binary_for(machine: str, host: str) -> Path:
    """The program for a Linux machine of that architecture; raise HostError when there is none."""
    own = platform.machine() if sys.platform == "linux" else f"{sys.platform}'s"
    if own == machine:
        return binary()
    raise HostError(
        host,
        f"needs uv for {machine}",
        kind="env",
        why=f"this installation brings uv for {own} alone",
        hint=f"set `python` of {host} to an environment that you make there",
    )
