"""The hashes that a requirements file gives its packages: what is installed has to have one of them.

`uv pip compile` drops them, and pip and uv check those of the file that they install from: so the lock gets
them back, each behind its package.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, canonicalize_version

OPTION = " --hash="
_HASH = re.compile(r"\s--hash[= ]\s*([A-Za-z0-9]+:[0-9A-Fa-f]+)")

Hashes = Mapping[tuple[str, str], tuple[str, ...]]  # (name, version or URL) -> algorithm:digest, ...


def hashes_in(texts: Iterable[str]) -> Hashes:
    """Those of the packages that the texts of requirements files pin to one version."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for line, given in _hashed(texts):
        if (pin := _pin(line)) is not None:
            found[pin] = tuple(dict.fromkeys((*found.get(pin, ()), *given)))
    return found


def unbound(texts: Iterable[str]) -> tuple[str, ...]:
    """The packages that have hashes without a version whose files these could be."""
    return tuple(line for line, _ in _hashed(texts) if _requirement(line) and _pin(line) is None)


def with_hashes(lock: str, known: Hashes) -> str:
    """The lines of a lock, each with the hashes that are known of its package."""
    lines = []
    for line in joined(lock):
        pin = None if OPTION in line else _pin(line)
        given = known.get(pin, ()) if pin is not None else ()
        lines.append(line + "".join(f"{OPTION}{one}" for one in given))
    return "".join(f"{line}\n" for line in lines)


def joined(text: str) -> Iterator[str]:
    """The lines of a requirements file, without comments; those that end in a backslash go on in the next."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        if content := " ".join(re.sub(r"(^|\s)#.*$", "", line).split()):
            yield content


def bare(line: str) -> str:
    """A line of a lock without its hashes."""
    return line.partition(OPTION)[0]


def _hashed(texts: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The lines with hashes: what stands before them, and they."""
    for line in (f" {line}" for text in texts for line in joined(text)):
        if given := tuple(one.lower() for one in _HASH.findall(line)):
            yield _HASH.split(line, maxsplit=1)[0].strip(), given


def _requirement(line: str) -> Requirement | None:
    try:
        return Requirement(line)
    except InvalidRequirement:  # an option, a path
        return None


def _pin(line: str) -> tuple[str, str] | None:
    if (requirement := _requirement(line)) is None:
        return None
    if requirement.url:
        return canonicalize_name(requirement.name), requirement.url
    versions = [one.version for one in requirement.specifier if one.operator in {"==", "==="}]
    if len(versions) != 1 or versions[0].endswith(".*"):
        return None
    return canonicalize_name(requirement.name), canonicalize_version(versions[0])
