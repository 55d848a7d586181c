"""Names from outside as types that can only be names: none leads out of a folder."""

import re
from typing import ClassVar, Self

from orchestrator.errors import UsageError


class NotANameError(UsageError, ValueError):
    """A text that is not a valid name of this kind."""


class _Name(str):
    """Text that matches one pattern; any other text raises NotANameError."""

    __slots__ = ()
    KIND: ClassVar[str]
    PATTERN: ClassVar[re.Pattern[str]]

    def __new__(cls, text: object) -> Self:
        if not isinstance(text, str) or not cls.PATTERN.fullmatch(text):
            raise NotANameError(f"{text!a:.70} is not {cls.KIND}", hint="`orchestrate runs` lists the runs")
        return super().__new__(cls, text)


class RunId(_Name):
    """`20261121-010203-abcd`; the name of a run's folder here and on every node."""

    __slots__ = ()
    KIND = "the id of a run"
    PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)


class AttemptName(_Name):
    """`1`, `2`, ... for training attempts; `validate`, `validate-2`, `validate-2-1` before them."""

    __slots__ = ()
    KIND = "the name of an attempt"
    PATTERN = re.compile(r"[1-9][0-9]{0,5}|validate(-[1-9][0-9]{0,5}){0,2}", re.ASCII)

    @property
    def number(self) -> int | None:
        """Return the number of a training attempt; None for a validation."""
        return int(self) if self.isdigit() else None


def is_validation(attempt: str) -> bool:
    """Return True for an attempt that runs before the training; False for "", which is no attempt."""
    return bool(attempt) and AttemptName(attempt).number is None
