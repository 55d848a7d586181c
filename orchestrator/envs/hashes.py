"""The hashes that a requirements file gives its packages: what is installed has to have one of them.

`uv pip compile` drops them, and pip and uv check those of the file that they install from: so the lock gets
them back, each behind its package.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

OPTION = " --hash="
_HASH = re.compile(r"\s--hash[= ]\s*([a-z0-9]+:[0-9A-Fa-f]+)")

Hashes = Mapping[tuple[str, str], tuple[str, ...]]  # (name, version) -> algorithm:digest, ...


def hashes_in(texts: Iterable[str]) -> Hashes:
    """Those of the packages that the texts of requirements files pin to one version."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for line in (line for text in texts for line in joined(text)):
        pin = _pin(_HASH.split(f" {line}", maxsplit=1)[0])
        if pin is not None and (given := tuple(_HASH.findall(f" {line}"))):
            found[pin] = tuple(dict.fromkeys((*found.get(pin, ()), *given)))
    return found


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


def _pin(line: str) -> tuple[str, str] | None:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:  # an option, a path
        return None
    versions = [one.version for one in requirement.specifier if one.operator in {"==", "==="}]
    if len(versions) != 1 or versions[0].endswith(".*"):
        return None
    return canonicalize_name(requirement.name), versions[0]
