"""Wheels for hosts that reach no package index: downloaded once for each platform, by pip, and kept."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from orchestrator.envs import uv
from orchestrator.envs.hashes import OPTION, bare
from orchestrator.envs.lock import Lock, requirement_lines
from orchestrator.errors import ClusterError
from orchestrator.plainfile import cache, make_folder

_COMPLETE = ".complete"
_OLDEST_GLIBC = 5  # of the manylinux tags that name one: manylinux_2_5
_LINES = 6
_CHANGED = "compare the hashes in `requirements` of [env] with those of the index: it serves another file"


@dataclass(frozen=True)
class Platform:
    """What decides which wheel fits."""

    machine: str  # x86_64, aarch64
    libc: str  # "glibc 2.36"
    python: str  # 3.11.2

    @property
    def minor(self) -> str:
        return ".".join(self.python.split(".")[:2])

    @property
    def name(self) -> str:
        return f"cp{self.minor.replace('.', '')}-{self.libc.replace(' ', '-') or 'unknown'}-{self.machine}"

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


def folder_of(lock: Lock, platform: Platform) -> Path:
    """Where the wheels of a lock are kept."""
    return cache("wheels") / f"{lock.name}-{platform.name}"


def fetch(lock: Lock, platform: Platform, index: str | None) -> Path:
    """A folder with a wheel for every package; raise ClusterError when one cannot be had."""
    folder = folder_of(lock, platform)
    if (folder / _COMPLETE).exists():
        return folder
    wanted = pins(lock, platform)
    if not wanted:
        raise ClusterError(
            f"[env] asks for no package on {platform.name}",
            why="the markers of all of them leave it out",
            hint="name what the program needs there, or give these hosts a `python` of their own",
        )
    make_folder(folder.parent)
    incoming = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        sources = _without_wheels(wanted, platform, index)
        _download([pin for pin in wanted if _name(pin) not in sources], platform, index, incoming)
        for pin in wanted:
            if _name(pin) in sources:
                _build(pin, index, incoming)
        (incoming / _COMPLETE).touch()
        if folder.exists():
            shutil.rmtree(folder)
        incoming.rename(folder)
    except BaseException:
        shutil.rmtree(incoming, ignore_errors=True)
        raise
    return folder


def _name(pin: str) -> str:
    return Requirement(bare(pin)).name


def _without_wheels(wanted: list[str], platform: Platform, index: str | None) -> set[str]:
    """The packages that come as source alone."""
    with tempfile.TemporaryDirectory() as name:
        listing = Path(name) / "pins.txt"
        listing.write_text("\n".join(wanted), encoding="utf-8")
        more = ["--default-index", index] if index else []
        text = uv.run(
            "look up the packages of [env]",
            [
                *("pip", "compile", "--quiet", "--no-header", "--no-deps", *more),
                *(
                    "--python-version",
                    platform.minor,
                    "--python-platform",
                    f"{platform.machine}-unknown-linux-gnu",
                ),
                *("--format", "pylock.toml", str(listing)),
            ],
        )
    packages = tomllib.loads(text).get("packages", [])
    return {one["name"] for one in packages if not one.get("wheels")}


def _download(wanted: list[str], platform: Platform, index: str | None, folder: Path) -> None:
    tags = [word for tag in platform.tags() for word in ("--platform", tag)]
    abi = f"cp{platform.minor.replace('.', '')}"
    abis = [word for name in (abi, "abi3", "none") for word in ("--abi", name)]
    arguments = ["download", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    arguments += ["--python-version", platform.minor, *abis, *tags]
    what = f"download the packages of [env] for {platform.name}"
    for hashed in (True, False):  # given one hash, pip wants one for every package that it is asked for
        _pip(arguments, [pin for pin in wanted if (OPTION in pin) is hashed], index, folder, what)


def _build(pin: str, index: str | None, folder: Path) -> None:
    before = set(folder.iterdir())
    what = f"build {bare(pin)}, which has no wheel"
    _pip(["wheel", "--no-deps", "--use-pep517"], [pin], index, folder, what)
    for wheel in set(folder.iterdir()) - before:
        if not wheel.name.endswith("-any.whl"):
            raise ClusterError(
                f"{bare(pin)} has no wheel, and one that is built here runs on machines like this one alone",
                hint='set `via = "node"` under [env], or another version of it',
            )


def _pip(arguments: list[str], wanted: list[str], index: str | None, folder: Path, what: str) -> None:
    if not wanted:
        return
    target = "--dest" if arguments[0] == "download" else "--wheel-dir"
    with tempfile.TemporaryDirectory() as name:
        listing = Path(name) / "pins.txt"
        listing.write_text("\n".join(wanted), encoding="utf-8")
        more = ["--index-url", index] if index else []
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, *more),
                *("--quiet", target, str(folder), "--requirement", str(listing)),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    if done.returncode:
        lines = [line for line in done.stderr.split("\n") if line.strip()]
        raise ClusterError(
            f"cannot {what}",
            why="\n".join(lines[-_LINES:]),
            hint=_CHANGED
            if "DO NOT MATCH THE HASHES" in done.stderr
            else 'check the network here; or set `via = "node"` under [env], where the hosts reach an index',
        )
