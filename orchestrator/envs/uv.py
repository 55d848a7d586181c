"""This installation's uv, which resolves packages here, and downloads Pythons for hosts without one."""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.envs.platforms import Platform
from orchestrator.errors import ClusterError, UsageError
from orchestrator.node.stock.uv import OWN_CERTIFICATES, UNTRUSTED, environment, tail
from orchestrator.plainfile import cache, make_folder

# It uses sysconfig, which before Python 3.12 shows one thread what another has half initialized.
_finding = threading.Lock()
_RELEASE = re.compile(r"3\.(\d+)\.\d+")


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
    env = {**environment(os.environ), **settings}
    done = _run(arguments, env)
    if UNTRUSTED in done.stderr:
        done = _run(arguments, {**env, **OWN_CERTIFICATES})
    if done.returncode:
        raise ClusterError(
            f"cannot {what}",
            why=tail(done.stderr),
            hint="fix what uv reports; for a private index set `index` under [env], or UV_DEFAULT_INDEX",
        )
    return done.stdout


def _run(arguments: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(binary()), *arguments],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


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


def available(target: Platform) -> frozenset[int]:
    """Return the minor versions of Python 3 that uv can download for a platform."""
    arguments = ["python", "list", "--only-downloads", "--all-platforms", "--all-arches"]
    arguments += ["--output-format", "json"]
    listing = json.loads(run("list the Pythons that uv can download", arguments))
    releases = (
        _RELEASE.fullmatch(build["version"]) for build in listing if build["key"].endswith(_suffix(target))
    )
    return frozenset(int(release[1]) for release in releases if release)


def standalone(target: Platform) -> Path:
    """Return the folder of a Python of the platform's minor version; raise ClusterError if there is none.

    UV_PYTHON_INSTALL_MIRROR names a mirror, as for uv itself.
    """
    folder = cache("pythons")
    make_folder(folder)
    key = f"cpython-{target.minor}{_suffix(target)}"
    arguments = ["python", "install", "--no-bin", "--install-dir", str(folder), key]
    try:
        run(f"download Python {target.minor}", arguments, UV_PYTHON_DOWNLOADS="manual")
    except ClusterError as error:
        hint = f"install Python {target.minor} there, or name a mirror in UV_PYTHON_INSTALL_MIRROR here"
        raise ClusterError(error.what, why=error.why, hint=hint) from error
    # uv names the folder after the patch version, of which there may be several.
    made = folder.glob(f"cpython-{target.minor}.*{_suffix(target)}")
    return max(made, key=lambda python: [int(part) for part in re.findall(r"\d+", python.name.split("-")[1])])


def _suffix(target: Platform) -> str:
    return f"-linux-{target.machine}-{'musl' if target.is_musl else 'gnu'}"
