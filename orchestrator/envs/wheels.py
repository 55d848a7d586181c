"""Wheels for hosts that reach no package index: downloaded once for each platform, by pip, and kept."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator.envs import uv
from orchestrator.envs.lock import HASH, Lock, bare, requirement_lines
from orchestrator.envs.platforms import Compatibility, Platform, fit
from orchestrator.errors import ClusterError
from orchestrator.node.disk.removing import measure
from orchestrator.node.stock.uv import tail
from orchestrator.plainfile import cache, make_folder

_COMPLETE = ".complete"
_LINES = 6
_GLANCE = 0.5  # seconds between two looks at how far pip has come
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def fetch(lock: Lock, platform: Platform, index: str | None, on_bytes: Callable[[int], None]) -> Path:
    """Return a folder with a wheel for every package; raise ClusterError when one cannot be had."""
    folder = cache("wheels") / f"{lock.name}-{platform.name}"
    if (folder / _COMPLETE).exists():
        return folder
    packages = _packages(lock, platform, index)
    make_folder(folder.parent)
    incoming = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        pip = functools.partial(_pip, index=index, folder=incoming, on_bytes=on_bytes)
        tags = [word for tag in platform.tags() for word in ("--platform", tag)]
        abis = [word for abi in (platform.abi, "abi3", "none") for word in ("--abi", abi)]
        download = ["download", "--no-deps", "--only-binary=:all:", "--implementation", "cp", *abis, *tags]
        download += ["--python-version", platform.minor, "--dest"]
        for is_hashed in (True, False):  # given one hash, pip wants one for every package
            some = [pin for pin, has_wheel in packages.items() if has_wheel and (HASH in pin) is is_hashed]
            pip(f"download the packages of [env] for {platform.name}", download, some)
        for pin in (pin for pin, has_wheel in packages.items() if not has_wheel):
            before = set(incoming.iterdir())
            build = ["wheel", "--no-deps", "--use-pep517", "--wheel-dir"]
            pip(f"build {bare(pin)}, which has no wheel", build, [pin])
            if any(not wheel.name.endswith("-any.whl") for wheel in set(incoming.iterdir()) - before):
                raise ClusterError(
                    f"{bare(pin)} has no wheel, and one that is built here runs on machines like this alone",
                    hint='set `via = "node"` under [env], or another version of it',
                )
        (incoming / _COMPLETE).touch()
        if folder.exists():
            shutil.rmtree(folder)
        incoming.rename(folder)
    except BaseException:
        shutil.rmtree(incoming, ignore_errors=True)
        raise
    return folder


def fitting(lock: Lock, platform: Platform, index: str | None) -> Compatibility:
    """Return the Pythons for which a platform gets a wheel of every package; raise ClusterError."""
    return fit(_pylock(lock, index, "--universal"), platform)


def uv_for(platform: Platform, index: str | None, on_bytes: Callable[[int], None]) -> Path:
    """Return a uv that runs on a platform; raise ClusterError if it has to be downloaded and cannot be."""

    def download(folder: Path, requirements: Sequence[str]) -> None:
        tags = [word for tag in platform.tags() for word in ("--platform", tag)]
        words = ["download", "--no-deps", "--only-binary=:all:", *tags, "--dest"]
        what = f"download uv for {platform.name}"
        _pip(what, words, list(requirements), index=index, folder=folder, on_bytes=on_bytes)

    return uv.binary_for(platform, download)


def _pylock(lock: Lock, index: str | None, *target: str) -> list[Mapping[str, Any]]:
    """Return the packages of a lock with the files that the index has of each (PEP 751)."""
    with tempfile.TemporaryDirectory() as name:
        listing = Path(name) / "lock.txt"
        listing.write_text(lock.text, encoding="utf-8")
        arguments = ["pip", "compile", "--quiet", "--no-header", "--no-deps", "--format", "pylock.toml"]
        arguments += [*target, *(["--default-index", index] if index else [])]
        text = uv.run("look up the packages of [env]", [*arguments, str(listing)])
    return list(tomllib.loads(text).get("packages", []))


def _packages(lock: Lock, platform: Platform, index: str | None) -> dict[str, bool]:
    """Return the lines of a lock that a platform needs, without markers, and whether each has a wheel."""
    target = ("--python-version", platform.python, "--python-platform", platform.triple)
    packages = _pylock(lock, index, *target)
    found = {canonicalize_name(one["name"]): one for one in packages}
    chosen = {}
    for line in requirement_lines(lock.text):
        requirement = Requirement(bare(line))
        package = found.get(canonicalize_name(requirement.name))
        if package and (
            requirement.url or requirement.specifier.contains(package["version"], prereleases=True)
        ):
            requirement.marker = None
            chosen[f"{requirement}{line[len(bare(line)) :]}"] = bool(package.get("wheels"))
    return chosen


def _pip(
    what: str,
    arguments: list[str],
    pins: list[str],
    *,
    index: str | None,
    folder: Path,
    on_bytes: Callable[[int], None],
) -> None:
    """Have pip put these packages into a folder, and watch its files; raise ClusterError ("cannot WHAT")."""
    if not pins:
        return
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        listing = Path(name) / "pins.txt"
        listing.write_text("\n".join(pins), encoding="utf-8")
        options = ["--index-url", index] if index else []
        with subprocess.Popen(
            [*_PIP, *arguments, str(folder), "--quiet", "--requirement", str(listing), *options],
            env={**os.environ, "TMPDIR": name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            try:
                words = None
                while words is None:
                    try:
                        words = process.communicate(timeout=_GLANCE)[1]
                    except subprocess.TimeoutExpired:
                        on_bytes(measure(name).size + measure(str(folder)).size)
            except BaseException:
                process.kill()
                raise
    if process.returncode:
        raise ClusterError(
            f"cannot {what}",
            why=tail(words, _LINES),
            hint='check the network here; or set `via = "node"` under [env], if the hosts reach an index',
        )
