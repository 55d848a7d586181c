"""Compact host names: `gpu-[01-03,7]` stands for gpu-01, gpu-02, gpu-03 and gpu-7. Also grouping by key."""

import itertools
import math
import re
from collections.abc import Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
LIMIT = 4096  # hosts in one pattern: a typo such as [1-99999999] must not fill the memory

# No colon inside: "[fe80::1]" is an IPv6 address and stays unchanged.
_BRACKETS = re.compile(r"\[([^\[\]:]*)\]")
_ITEM = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
# The last number of a name, or of the part before its domain.
_NUMBER = re.compile(r"(.*?)([0-9]{1,9})([^0-9]*(?:\.[A-Za-z].*)?)", re.DOTALL)
_COMMA_OUTSIDE = re.compile(r",(?![^\[]*\])")


def expand(pattern: str) -> tuple[str, ...]:
    """Return the names that a pattern stands for, in its order; the last range varies fastest.

    Raise ValueError with a message for the user if a range is invalid.
    """
    if pattern.count("[") != pattern.count("]"):
        raise ValueError(f'has brackets that do not match: "{pattern}"')
    pieces = _BRACKETS.split(pattern)
    choices = [_numbers(piece) if place % 2 else (piece,) for place, piece in enumerate(pieces)]
    total = math.prod(map(len, choices))
    if total > LIMIT:
        raise ValueError(f"stands for {total} hosts; at most {LIMIT} are allowed")
    return tuple("".join(parts) for parts in itertools.product(*choices))


def expand_all(text: str) -> tuple[str, ...]:
    """Return the names of several comma-separated patterns, as `fold` writes them."""
    parts = (part.strip() for part in _COMMA_OUTSIDE.split(text))
    return tuple(name for part in parts if part for name in expand(part))


def fold(names: Iterable[str]) -> str:
    """Return names in compact form, in natural order: `gpu-[01-08],login`; `expand_all` reverses it."""
    groups: dict[tuple[str, str, bool], list[str]] = {}
    for name in sorted(set(names), key=natural_key):
        match = _NUMBER.fullmatch(name)
        before, number, behind = match.groups() if match else (name, "", "")
        groups.setdefault((before, behind, match is None), []).append(number)
    return ",".join(
        f"{before}{_write_numbers(numbers)}{behind}" for (before, behind, _), numbers in groups.items()
    )


def natural_key(name: str) -> tuple[object, ...]:
    """Return a sort key that puts gpu-9 before gpu-10."""
    pieces = re.split(r"([0-9]+)", name)
    numbers = ((len(digits.lstrip("0")), digits.lstrip("0")) for digits in pieces[1::2])
    return (*itertools.chain.from_iterable(itertools.zip_longest(pieces[::2], numbers, fillvalue=())), name)


def _numbers(inside: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(number for item in inside.split(",") for number in _run(item.strip(), inside)))


def _run(item: str, inside: str) -> Iterable[str]:
    match = _ITEM.fullmatch(item)
    low, high = (match[1], match[2] or match[1]) if match else ("1", "0")
    padded = _is_padded(low) or _is_padded(high)
    if int(high) < int(low) or (padded and len(low) != len(high)):
        raise ValueError(f"[{inside}] is not a range; write [01-08] or [1,3,5-7]")
    if int(high) - int(low) >= LIMIT:
        raise ValueError(f"[{inside}] stands for more than {LIMIT} hosts")
    width = len(low) if padded else 0
    return (str(number).zfill(width) for number in range(int(low), int(high) + 1))


def _write_numbers(numbers: list[str]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    runs: list[list[str]] = []
    for number in sorted(numbers, key=lambda digits: (int(digits), len(digits))):
        if runs and _continues(runs[-1], number):
            runs[-1].append(number)
        else:
            runs.append([number])
    return "[" + ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) + "]"


def _is_padded(digits: str) -> bool:
    return len(digits) > 1 and digits.startswith("0")


def _continues(run: list[str], number: str) -> bool:
    if int(number) != int(run[-1]) + 1:
        return False
    return len(number) == len(run[0]) if _is_padded(run[0]) else not _is_padded(number)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, both in order of first appearance."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
