"""Platforms of hosts: which wheels run there, and for which versions of Python a lock has them all."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from packaging.markers import Marker
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from orchestrator.value import Value

_OLDEST_GLIBC = 5  # in manylinux tags that contain one: manylinux_2_5
_MINORS = range(8, 30)  # versions of Python 3 that are considered
EXACT = re.compile(r"\d+\.\d+(\.\d+)?")
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}  # for markers


class Platform(Value):
    """The facts about a machine that decide which wheel fits."""

    machine: str  # x86_64, aarch64
    libc: str  # "glibc 2.36"; "" for another C library, which on Linux is musl
    python: str = ""  # 3.11.2; "" if it does not matter

    @property
    def is_musl(self) -> bool:
        return not self.libc

    @property
    def minor(self) -> str:
        return ".".join(self.python.split(".")[:2])

    @property
    def abi(self) -> str:
        return f"cp{self.minor.replace('.', '')}"

    @property
    def name(self) -> str:
        parts = (self.abi if self.python else "", self.libc.replace(" ", "-") or "musl", self.machine)
        return "-".join(filter(None, parts))

    def tags(self) -> Iterator[str]:
        """Return the platform tags of wheels that run there, in pip's order (PEP 600, PEP 656)."""
        if self.is_musl:
            yield from (f"musllinux_1_{minor}_{self.machine}" for minor in (2, 1))
        else:
            match = re.fullmatch(r"glibc 2\.(\d{1,3})", self.libc)
            newest = int(match[1]) if match else _OLDEST_GLIBC
            for minor in range(newest, _OLDEST_GLIBC - 1, -1):
                yield f"manylinux_2_{minor}_{self.machine}"
            yield from (f"{old}_{self.machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1"))
        yield f"linux_{self.machine}"


class Compatibility(Value, eq=False):
    """The minor versions of Python 3 for which a platform gets a wheel of every package of a lock."""

    minors: tuple[int, ...]
    blocking: Mapping[int, tuple[str, ...]]  # the packages without a wheel, for each other version

    def allowed(self, requested: str) -> tuple[int, ...]:
        """Return the allowed versions; `requested` is a version, a specifier (PEP 440), or an interpreter."""
        return tuple(minor for minor in self.minors if allows(allowed_by(requested), minor))

    def missing(self, requested: str) -> str:
        """Return the packages without a wheel for the allowed version that lacks the fewest."""
        allowed = [names for minor, names in self.blocking.items() if allows(allowed_by(requested), minor)]
        fewest: tuple[str, ...] = min(allowed, key=len, default=())
        return ", ".join(fewest)


def specifier(requested: str, minors: Sequence[int]) -> str:
    """Return the request for uv: some of these versions, as far as they are allowed."""
    if not minors or allowed_by(requested) is None or EXACT.fullmatch(requested):
        return requested
    holes = (f"!=3.{minor}.*" for minor in range(minors[0], minors[-1]) if minor not in minors)
    return ",".join(
        dict.fromkeys([*requested.split(","), f">=3.{minors[0]}", f"<3.{minors[-1] + 1}", *holes])
    )


def allows(pythons: SpecifierSet | None, minor: int) -> bool:
    """Return True if a release of Python 3.MINOR is allowed; None allows all."""
    return pythons is None or any(f"3.{minor}{patch}" in pythons for patch in ("", ".99"))


def allowed_by(requested: str) -> SpecifierSet | None:
    """Return the Pythons that a version or a specifier allows; None for an interpreter."""
    try:
        return SpecifierSet(f"=={requested}.*" if EXACT.fullmatch(requested) else requested)
    except InvalidSpecifier:
        return None


def fit(packages: Sequence[Mapping[str, Any]], platform: Platform) -> Compatibility:
    """Return for which Pythons the packages of a pylock.toml (PEP 751) have wheels.

    A package without any wheel is built. One that has wheels and a source is built only if no version of
    Python has wheels of all packages: a build takes minutes and a compiler.
    """
    with_wheels = [package for package in packages if package.get("wheels") or "sdist" not in package]
    if (strict := _fit(with_wheels, platform)).minors:
        return strict
    return _fit([package for package in packages if "sdist" not in package], platform)


def _fit(packages: Sequence[Mapping[str, Any]], platform: Platform) -> Compatibility:
    blocking: dict[int, list[str]] = {minor: [] for minor in _MINORS}
    for package in packages:
        wheels = frozenset[Tag]().union(*map(_tags, package.get("wheels", ())))
        for minor in _MINORS if "wheels" in package else ():
            if wheels.isdisjoint(_runs(minor, platform)) and _applies(package, minor, platform):
                blocking[minor].append(str(package["name"]))
    minors = tuple(minor for minor, names in blocking.items() if not names)
    return Compatibility(minors, {minor: tuple(names) for minor, names in blocking.items() if names})


@functools.cache
def _runs(minor: int, platform: Platform) -> frozenset[Tag]:
    """Return the tags of the wheels that run under a version of Python on a platform."""
    version, platforms, abi = (3, minor), tuple(platform.tags()), f"cp3{minor}"
    own = cpython_tags(version, abis=[abi], platforms=platforms)
    return frozenset([*own, *compatible_tags(version, interpreter=abi, platforms=platforms)])


def _applies(package: Mapping[str, Any], minor: int, platform: Platform) -> bool:
    """Return True if a version of Python on a platform needs a package."""
    if "marker" not in package:
        return True
    python = {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.99"}
    return Marker(package["marker"]).evaluate({**LINUX, **python, "platform_machine": platform.machine})


def _tags(wheel: Mapping[str, Any]) -> frozenset[Tag]:
    name = wheel.get("name") or PurePosixPath(unquote(str(wheel.get("url") or wheel.get("path")))).name
    try:
        return parse_wheel_filename(str(name))[3]
    except InvalidWheelFilename:
        return frozenset()
