"""Wheels for hosts without access to a package index: downloaded once per platform by pip, and stored."""

import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator.envs import uv
from orchestrator.envs.lock import HASH, Lock, bare, requirement_lines, universal
from orchestrator.envs.platforms import Compatibility, Platform, fit
from orchestrator.errors import ClusterError
from orchestrator.model import EnvironmentPlan
from orchestrator.node.disk.removing import measure
from orchestrator.node.stock.uv import tail
from orchestrator.plainfile import cache, make_folder

_COMPLETE = ".complete"
_LINES = 6
_GLANCE = 0.5  # seconds between two checks of pip's progress
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def fetch(lock: Lock, platform: Platform, index: str | None, on_bytes: Callable[[int], None]) -> Path:
    """Return a folder with a wheel for every package; raise ClusterError if one is unavailable."""
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
        for is_hashed in (True, False):  # with one hash, pip requires one for every package
            some = [pin for pin, has_wheel in packages.items() if has_wheel and (HASH in pin) is is_hashed]
            pip(f"download the packages of [env] for {platform.name}", download, some)
        for pin in (pin for pin, has_wheel in packages.items() if not has_wheel):
            before = set(incoming.iterdir())
            build = ["wheel", "--no-deps", "--use-pep517", "--wheel-dir"]
            pip(f"build {bare(pin)}, which has no wheel", build, [pin])
            if any(not wheel.name.endswith("-any.whl") for wheel in set(incoming.iterdir()) - before):
                raise ClusterError(
                    f"{bare(pin)} has no wheel, and one that is built here runs only on machines like this",
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


def fitting(lock: Lock, platform: Platform, plan: EnvironmentPlan) -> Compatibility:
    """Return the Pythons for which a platform gets a wheel of every package; raise ClusterError."""
    return fit(_pylock(lock, plan.index, *universal(plan.python)), platform)


def uv_for(platform: Platform, index: str | None, on_bytes: Callable[[int], None]) -> Path:
    """Return a uv of this version that runs on a platform; raise ClusterError if there is none.

    uv is published as a wheel for each platform, which is downloaded once, into the user's cache.
    """
    if uv.is_own(platform):
        return uv.binary()
    version = importlib.metadata.version("uv")
    program = cache("uv") / f"{version}-{'musl' if platform.is_musl else 'gnu'}-{platform.machine}"
    if program.exists():
        return program
    make_folder(program.parent)
    tags = [word for tag in platform.tags() for word in ("--platform", tag)]
    download = ["download", "--no-deps", "--only-binary=:all:", *tags, "--dest"]
    with tempfile.TemporaryDirectory(prefix=".uv-", dir=program.parent) as name:
        what, pins = f"download uv for {platform.name}", [f"uv=={version}"]
        _pip(what, download, pins, index=index, folder=Path(name), on_bytes=on_bytes)
        (wheel,) = Path(name).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            member = next(path for path in archive.namelist() if path.endswith(".data/scripts/uv"))
            incoming = Path(name) / "program"
            incoming.write_bytes(archive.read(member))
        incoming.chmod(0o755)
        incoming.rename(program)
    return program


def _pylock(lock: Lock, index: str | None, *target: str) -> list[Mapping[str, Any]]:
    """Return the packages of a lock with the files that the index has for each (PEP 751)."""
    text = uv.compiled(lock.text, "--format", "pylock.toml", *target, index=index)
    return list(tomllib.loads(text).get("packages", []))


def _packages(lock: Lock, platform: Platform, index: str | None) -> dict[str, bool]:
    """Return the lines of a lock that a platform needs, without markers, and whether each has a wheel."""
    triple = f"{platform.machine}-unknown-linux-{'musl' if platform.is_musl else 'gnu'}"
    target = ("--python-version", platform.python, "--python-platform", triple)
    packages = _pylock(lock, index, *target)
    by_name = {canonicalize_name(package["name"]): package for package in packages}
    chosen = {}
    for line in requirement_lines(lock.text):
        requirement = Requirement(bare(line))
        package = by_name.get(canonicalize_name(requirement.name))
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
    """Download packages into a folder with pip, and watch its files; raise ClusterError ("cannot WHAT")."""
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
