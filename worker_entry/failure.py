"""Errors for users (what, why, a fix), and the exit statuses of this program."""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_TERMED: Final = 128 + 15  # a serving task exited on SIGTERM while its chief lived on
EXIT_SAVED: Final = 75  # EX_TEMPFAIL: stopped by SIGTERM, state saved, start again to continue


class ExpectedError(Exception):
    """An expected failure; printed as three lines without a traceback."""

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        lines = [f"error: {self.what}"]
        lines += [f"  why: {self.why}"] if self.why else []
        lines += [f"  try: {self.hint}"] if self.hint else []
        return "\n".join(lines)


class DivergedError(ExpectedError):
    """A loss is NaN or infinite."""

    def __init__(self, loss: str, value: float, step: int | None = None) -> None:
        what = f"the {loss} is {value}" + ("" if step is None else f" at step {step}")
        super().__init__(what, why="training has diverged", hint="lower --learning-rate, or check the data")


class UsageError(ExpectedError):
    """The command line or TF_CONFIG is wrong: exit status 2, nothing was started."""
