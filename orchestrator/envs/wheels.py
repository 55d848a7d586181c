"""Wheels for hosts that reach no package index: downloaded once for each platform, by pip, and kept."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from orchestrator.envs import uv
from orchestrator.envs.lock import HASH, Lock, bare, requirement_lines
from orchestrator.errors import ClusterError
from orchestrator.plainfile import cache, make_folder

_COMPLETE = ".complete"
_OLDEST_GLIBC = 5  # of the manylinux tags that name one: manylinux_2_5
_LINES = 6
_GLANCE = 0.5  # seconds between two looks at how far pip has come
_CHANGED = "compare the hashes in `requirements` of [env] with those of the index: it serves another file"


@dataclass(frozen=True)
class Platform:
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

    def markers(self) -> dict[str, str]:
        """The values of environment markers there (PEP 508)."""
        return {
            "implementation_name": "cpython",
            "implementation_version": self.python,
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": self.python,
            "python_version": self.minor,
            "sys_platform": "linux",
            "extra": "",
        }


def pins(lock: Lock, platform: Platform) -> list[str]:
    """The packages of a lock that a platform needs, as `name==version`, with their hashes."""
    chosen = []
    for line in requirement_lines(lock.text):
        requirement = Requirement(bare(line))
        if requirement.marker is None or requirement.marker.evaluate(platform.markers()):
            requirement.marker = None
            chosen.append(f"{requirement}{line[len(bare(line)) :]}")
    return chosen


def fetch(lock: Lock, platform: Platform, index: str | None, on_bytes: Callable[[int], None]) -> Path:
    """Return a folder with a wheel for every package; raise ClusterError when one cannot be had."""
    folder = cache("wheels") / f"{lock.name}-{platform.name}"
    if (folder / _COMPLETE).exists():
        return folder
    packages = pins(lock, platform)
    if not packages:
        raise ClusterError(
            f"[env] asks for no package on {platform.name}",
            why="the markers of all of them leave it out",
            hint="name what the program needs there, or give these hosts a `python` of their own",
        )
    make_folder(folder.parent)
    incoming = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        sources = _without_wheels(packages, platform, index)
        wheels = [pin for pin in packages if Requirement(bare(pin)).name not in sources]
        tags = [word for tag in platform.tags() for word in ("--platform", tag)]
        abis = [word for abi in (platform.abi, "abi3", "none") for word in ("--abi", abi)]
        download = ["download", "--no-deps", "--only-binary=:all:", "--implementation", "cp", *abis, *tags]
        download += ["--python-version", platform.minor]
        what = f"download the packages of [env] for {platform.name}"
        for hashed in (True, False):  # given one hash, pip wants one for every package that it is asked for
            pip = _Pip([pin for pin in wheels if (HASH in pin) is hashed], index, incoming, on_bytes)
            pip.run(download, "--dest", what)
        for pin in packages:
            if pin not in wheels:
                _build(pin, index, incoming, on_bytes)
        (incoming / _COMPLETE).touch()
        if folder.exists():
            shutil.rmtree(folder)
        incoming.rename(folder)
    except BaseException:
        shutil.rmtree(incoming, ignore_errors=True)
        raise
    return folder


def _without_wheels(packages: list[str], platform: Platform, index: str | None) -> set[str]:
    """Name the packages that come as source alone."""
    with tempfile.TemporaryDirectory() as name:
        listing = Path(name) / "pins.txt"
        listing.write_text("\n".join(packages), encoding="utf-8")
        target = [
            "--python-version",
            platform.minor,
            "--python-platform",
            f"{platform.machine}-unknown-linux-gnu",
        ]
        arguments = ["pip", "compile", "--quiet", "--no-header", "--no-deps", *target]
        arguments += ["--default-index", index] if index else []
        text = uv.run("look up the packages of [env]", [*arguments, "--format", "pylock.toml", str(listing)])
    return {
        package["name"] for package in tomllib.loads(text).get("packages", []) if not package.get("wheels")
    }


def _build(pin: str, index: str | None, folder: Path, on_bytes: Callable[[int], None]) -> None:
    before = set(folder.iterdir())
    pip = _Pip([pin], index, folder, on_bytes)
    pip.run(["wheel", "--no-deps", "--use-pep517"], "--wheel-dir", f"build {bare(pin)}, which has no wheel")
    for wheel in set(folder.iterdir()) - before:
        if not wheel.name.endswith("-any.whl"):
            raise ClusterError(
                f"{bare(pin)} has no wheel, and one that is built here runs on machines like this one alone",
                hint='set `via = "node"` under [env], or another version of it',
            )


@dataclass(frozen=True)
class _Pip:
    """One call of pip, which says nothing of its progress: its files are watched."""

    pins: list[str]
    index: str | None
    folder: Path
    on_bytes: Callable[[int], None]

    def run(self, arguments: list[str], target: str, what: str) -> None:
        if not self.pins:
            return
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as name:
            listing = Path(name) / "pins.txt"
            listing.write_text("\n".join(self.pins), encoding="utf-8")
            more = ["--index-url", self.index] if self.index else []
            argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, *more, "--quiet"]
            with (Path(name) / "errors").open("w+", encoding="utf-8", errors="replace") as errors:
                process = subprocess.Popen(
                    [*argv, target, str(self.folder), "--requirement", str(listing)],
                    env={**os.environ, "TMPDIR": name},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                )
                while (status := self._wait(process)) is None:
                    self.on_bytes(_size(Path(name)) + _size(self.folder))
                errors.seek(0)
                words = errors.read()
        if status:
            raise ClusterError(
                f"cannot {what}",
                why="\n".join([line for line in words.split("\n") if line.strip()][-_LINES:]),
                hint=_CHANGED
                if "DO NOT MATCH THE HASHES" in words
                else 'check the network here; or set `via = "node"` under [env], if the hosts reach an index',
            )

    @staticmethod
    def _wait(process: subprocess.Popen[bytes]) -> int | None:
        try:
            return process.wait(_GLANCE)
        except subprocess.TimeoutExpired:
            return None
        except BaseException:
            process.kill()
            process.wait()
            raise


def _size(folder: Path) -> int:
    """Return the bytes below a folder whose files come and go."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(top, name).lstat().st_size
    return total
