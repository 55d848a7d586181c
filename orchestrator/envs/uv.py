"""uv: the copy of this installation, which resolves packages here, and builds for other platforms."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.envs.platforms import Platform
from orchestrator.errors import ClusterError, UsageError
from orchestrator.node.stock.uv import environment, tail
from orchestrator.plainfile import cache, make_folder

# Its search asks sysconfig, which before Python 3.12 shows a second thread what the first has half filled in.
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


def is_own(target: Platform) -> bool:
    """Return True if this machine's own uv runs on the target."""
    is_musl = platform.libc_ver()[0] != "glibc"
    return (sys.platform, platform.machine(), is_musl) == ("linux", target.machine, target.is_musl)


def binary_for(target: Platform, download: Callable[[Path, Sequence[str]], None]) -> Path:
    """Return a uv of this installation's version that runs on a Linux platform.

    uv is published as a wheel for each platform: `download(folder, requirements)` fetches it once, into the
    user's cache. Raise ClusterError if there is none.
    """
    if is_own(target):
        return binary()
    version = importlib.metadata.version("uv")
    kept = cache("uv") / f"{version}-{'musl' if target.is_musl else 'gnu'}-{target.machine}"
    if kept.exists():
        return kept
    make_folder(kept.parent)
    with tempfile.TemporaryDirectory(prefix=".uv-", dir=kept.parent) as name:
        download(Path(name), [f"uv=={version}"])
        (wheel,) = Path(name).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            member = next(one for one in archive.namelist() if one.endswith(".data/scripts/uv"))
            program = Path(name) / "program"
            program.write_bytes(archive.read(member))
        program.chmod(0o755)
        program.rename(kept)
    return kept
