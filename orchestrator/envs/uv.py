"""This installation's uv, which resolves packages here."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from orchestrator.envs.platforms import Platform
from orchestrator.errors import ClusterError, UsageError
from orchestrator.node.stock.uv import environment, tail

# It uses sysconfig, which before Python 3.12 shows one thread what another has half initialized.
_finding = threading.Lock()


def binary() -> Path:
    """Return the path of this installation's uv; raise UsageError if it has none."""
    try:
        from uv import find_uv_bin  # noqa: PLC0415 - only commands that create environments need it

        with _finding:
            return Path(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise UsageError(
            "uv is missing from this installation",
            why=str(error),
            hint="install orchestrate again with pip: uv is one of its dependencies",
        ) from error


def run(what: str, arguments: Sequence[str], **settings: str) -> str:
    """Return the output of uv; raise ClusterError ("cannot WHAT") with its last lines if it fails."""
    done = subprocess.run(
        [str(binary()), *arguments],
        env={**environment(os.environ), **settings},
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
            hint="fix what uv reports; for a private index set `index` under [env], or UV_DEFAULT_INDEX",
        )
    return done.stdout


def compiled(text: str, *options: str, index: str | None) -> str:
    """Return what uv's index has for the lines of a lock; raise ClusterError if it lacks some."""
    with tempfile.TemporaryDirectory() as name:
        listing = Path(name) / "lock.txt"
        listing.write_text(text, encoding="utf-8")
        arguments = ["pip", "compile", "--quiet", "--no-header", "--no-deps", *options]
        arguments += ["--default-index", index] if index else []
        return run("look up the packages of [env]", [*arguments, str(listing)])


def is_own(target: Platform) -> bool:
    """Return True if this machine's own uv runs on the target."""
    is_musl = platform.libc_ver()[0] != "glibc"
    return (sys.platform, platform.machine(), is_musl) == ("linux", target.machine, target.is_musl)
