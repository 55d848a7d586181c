"""Wheels for hosts that reach no package index: downloaded once for each platform, by pip, and kept."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator.envs import uv
from orchestrator.envs.lock import HASH, Lock, bare, requirement_lines
from orchestrator.errors import ClusterError
from orchestrator.node.disk.removing import measure
from orchestrator.node.stock.uv import tail
from orchestrator.plainfile import cache, make_folder

_COMPLETE = ".complete"
_OLDEST_GLIBC = 5  # of the manylinux tags that name one: manylinux_2_5
_LINES = 6
_GLANCE = 0.5  # seconds between two looks at how far pip has come
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


class Platform(Struct, frozen=True):
    """The facts of a machine that decide which wheel fits."""

    machine: str  # x86_64, aarch64
    libc: str  # "glibc 2.36"
    python: str  # 3.11.2

    @property
    def minor(self) -> str:
        return ".".join(self.python.split(".")[:2])

    @property
    def abi(self) -> str:
        return f"cp{self.minor.replace('.', '')}"

    @property
    def name(self) -> str:
        return f"{self.abi}-{self.libc.replace(' ', '-') or 'unknown'}-{self.machine}"

    def tags(self) -> Iterator[str]:
        """The platform tags of wheels that run there, as pip wants to be told (PEP 600)."""
        match = re.fullmatch(r"glibc 2\.(\d{1,3})", self.libc)
        newest = int(match[1]) if match else _OLDEST_GLIBC
        for minor in range(newest, _OLDEST_GLIBC - 1, -1):
            yield f"manylinux_2_{minor}_{self.machine}"
        yield from (
            f"{old}_{self.machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1", "linux")
        )


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


def _packages(lock: Lock, platform: Platform, index: str | None) -> dict[str, bool]:
    """Return the lines of a lock that a platform needs, without markers, and whether each has a wheel."""
    with tempfile.TemporaryDirectory() as name:
        listing = Path(name) / "lock.txt"
        listing.write_text(lock.text, encoding="utf-8")
        target = f"{platform.machine}-unknown-linux-gnu"
        arguments = ["pip", "compile", "--quiet", "--no-header", "--no-deps", "--format", "pylock.toml"]
        arguments += ["--python-version", platform.python, "--python-platform", target]
        arguments += ["--default-index", index] if index else []
        text = uv.run("look up the packages of [env]", [*arguments, str(listing)])
    found = {canonicalize_name(one["name"]): one for one in tomllib.loads(text).get("packages", [])}
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
