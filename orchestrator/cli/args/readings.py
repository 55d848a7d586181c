"""Readings of the values of options; argparse says which option was wrong."""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.model import TaskId

_LONGEST_NAME = 100  # characters
_TIME = "a time (a time is written 600 or 10m)"


def assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not K=V (to pass your own on: K=$K)")
    return name, value


def task(text: str) -> TaskId:
    from orchestrator.model import TaskId

    try:
        return TaskId.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a task (one is written worker/1)") from error


def seconds(text: str) -> float:
    """Read a span of time, or parts of a second."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = span(text)
    if not 0 <= seconds <= 365 * 24 * 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not {_TIME}")
    return seconds


def pause(text: str) -> float:
    """Read the seconds between two looks."""
    if (interval := seconds(text)) < 0.1:
        raise argparse.ArgumentTypeError(f"{text!r} is too short (0.1 and more)")
    return interval


def name(text: str) -> str:
    """Read a name, which is shown in tables and titles, also to others, and typed to find the run."""
    if not text:  # the default; the parser has refused it where it was written
        return text
    if not (text.isprintable() and text.strip() and len(text) <= _LONGEST_NAME):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a name (1 to {_LONGEST_NAME} characters that can be printed)"
        )
    return text


def whole(low: int = 0, high: int = 999_999) -> Callable[[str], int]:
    """Make the reading of a whole number from `low` to `high`."""

    def read(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,9}", text):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
        if not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text} is not from {low} to {high}")
        return int(text)

    return read


_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SIZES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def _amount(text: str, units: Mapping[str, int], what: str) -> float:
    """Read a number with one of the units; 0 needs none, nor any number where "" is one."""
    match = re.fullmatch(r"([0-9]{1,6})([A-Za-z]?)", text)
    unit = None if match is None else units.get(match[2], 0 if int(match[1]) == 0 and not match[2] else None)
    if match is None or unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return float(int(match[1]) * unit)


def age(text: str) -> float:
    return _amount(text, _TIMES, "an age (an age is written 12h or 7d)")


def span(text: str) -> float:
    return _amount(text, {**_TIMES, "": 1}, _TIME)


def rate(text: str) -> float:
    """Bytes per second; not 0."""
    amount = _amount(text.removesuffix("/s").removesuffix("B"), _SIZES, "a rate (a rate is written 20M)")
    if not amount:
        raise argparse.ArgumentTypeError(f"{text!r} would send nothing (a rate is written 20M)")
    return amount


def since(text: str) -> float:
    """A moment, in seconds since the epoch: so long ago, or a date (and time), local without a zone."""
    try:
        return time.time() - _amount(text, _TIMES, "")
    except argparse.ArgumentTypeError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time (a time is written 10m, 2h or 2026-11-22T14:30)"
        ) from error


def lines(text: str) -> float:
    if text == "all":
        return math.inf
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor `all`")
    return int(text)
