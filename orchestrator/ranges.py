"""Host names written short: `gpu-[01-03,7]` stands for gpu-01, gpu-02, gpu-03 and gpu-7."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from typing import TypeAlias

LIMIT = 4096  # hosts in one pattern: a typo such as [1-99999999] must not fill the memory

# No colon inside: "[fe80::1]" is an IPv6 address and stays as it is.
_BRACKETS = re.compile(r"\[([^\[\]:]*)\]")
_ITEM = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_NUMBER = re.compile(r"([0-9]{1,9})")
_COMMA_OUTSIDE = re.compile(r",(?![^\[]*\])")

# A name in pieces: text at the even places, the numbers that occur there at the odd ones.
_Pieces: TypeAlias = tuple[str | frozenset[str], ...]


def expand(pattern: str) -> tuple[str, ...]:
    """The names one pattern stands for, in its own order; several ranges multiply, the last runs fastest.

    Raise ValueError, worded for the user, when a range cannot be read.
    """
    if pattern.count("[") != pattern.count("]"):
        raise ValueError(
            f'has a [ without a ]: "{pattern}"' if "[" in pattern else f'has a ] without a [: "{pattern}"'
        )
    pieces = _BRACKETS.split(pattern)
    choices = [_numbers(piece) if place % 2 else (piece,) for place, piece in enumerate(pieces)]
    total = math.prod(map(len, choices))
    if total > LIMIT:
        raise ValueError(f"stands for {total} hosts; at most {LIMIT} are allowed")
    return tuple("".join(parts) for parts in itertools.product(*choices))


def expand_all(text: str) -> tuple[str, ...]:
    """Expand several patterns with commas between them, as `fold` writes them."""
    parts = (part.strip() for part in _COMMA_OUTSIDE.split(text))
    return tuple(name for part in parts if part for name in expand(part))


def fold(names: Iterable[str]) -> str:
    """Write names short, sorted as a person counts: `gpu-[01-08],login`; `expand_all` undoes it."""
    folded: list[_Pieces] = [_split(name) for name in sorted(set(names), key=natural_key)]
    # From the right, since that is where hosts are numbered: 10.0.0.[1-8], rack1-gpu[1-4].
    for place in range(max((len(pieces) for pieces in folded), default=0) - 1, 0, -1):
        if place % 2:
            folded = _merge(folded, place)
    return ",".join(_write(pieces) for pieces in folded)


def natural_key(name: str) -> tuple[object, ...]:
    """Sorts gpu-9 before gpu-10."""
    pieces = re.split(r"([0-9]+)", name)
    numbers = ((len(digits.lstrip("0")), digits.lstrip("0")) for digits in pieces[1::2])
    return (*itertools.chain.from_iterable(itertools.zip_longest(pieces[::2], numbers, fillvalue=())), name)


def _numbers(inside: str) -> tuple[str, ...]:
    numbers: dict[str, None] = {}
    for item in inside.split(","):
        for number in _run(item.strip(), inside):
            if number in numbers:
                raise ValueError(f"[{inside}] names {number} twice")
            numbers[number] = None
    return tuple(numbers)


def _run(item: str, inside: str) -> Iterable[str]:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise ValueError(f"[{inside}] is not a range; write [01-08] or [1,3,5-7]")
    low, high = match[1], match[2] or match[1]
    if int(high) < int(low):
        raise ValueError(f"[{inside}] counts down; write [{high}-{low}]")
    padded = _is_padded(low) or _is_padded(high)
    if padded and len(low) != len(high):
        width = max(len(low), len(high))
        raise ValueError(
            f"[{inside}] pads its two ends differently;"
            f" write [{low.zfill(width)}-{high.zfill(width)}] or [{int(low)}-{int(high)}]"
        )
    if int(high) - int(low) >= LIMIT:
        raise ValueError(f"[{inside}] stands for more than {LIMIT} hosts")
    width = len(low) if padded else 0
    return (str(number).zfill(width) for number in range(int(low), int(high) + 1))


def _split(name: str) -> _Pieces:
    return tuple(
        frozenset((piece,)) if place % 2 else piece for place, piece in enumerate(_NUMBER.split(name))
    )


def _merge(names: list[_Pieces], place: int) -> list[_Pieces]:
    """Join names that differ only in the number at `place`; the first of them keeps its position."""
    merged: dict[_Pieces, frozenset[str]] = {}
    for pieces in names:
        numbers = pieces[place] if place < len(pieces) else frozenset[str]()
        assert isinstance(numbers, frozenset)
        rest = (*pieces[:place], *pieces[place + 1 :]) if numbers else pieces
        key = (*rest, str(bool(numbers)))
        merged[key] = merged.get(key, frozenset()) | numbers
    return [
        (*key[:place], numbers, *key[place:-1]) if numbers else key[:-1] for key, numbers in merged.items()
    ]


def _write(pieces: _Pieces) -> str:
    return "".join(piece if isinstance(piece, str) else _write_numbers(piece) for piece in pieces)


def _write_numbers(numbers: frozenset[str]) -> str:
    if len(numbers) == 1:
        return next(iter(numbers))
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
