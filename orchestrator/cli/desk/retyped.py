"""The line that was typed, in the fix for its command: `launch` as a check knows it has no options."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from orchestrator.errors import ElsewhereError, UsageError
from orchestrator.ranges import fold


def keep_line(error: UsageError, ours: Sequence[str], inventory: str) -> UsageError:
    """The error with the verb and the options of `ours` in its hint.

    One that leads to another folder names the inventory, which is perhaps not found from there.
    """
    words = list(ours)
    if isinstance(error, ElsewhereError) and Path(inventory).is_file():
        words = [*without(words, ("--hosts", "--code")), "--hosts", str(Path(inventory).resolve())]
    return keep_words(error, "launch", words)


def keep_words(error: UsageError, verb: str, words: Sequence[str]) -> UsageError:
    """The error with `words` in its hint where that has the verb alone."""
    line = shlex.join(["orchestrate", *words])
    return UsageError(
        error.what, why=error.why, hint=error.hint.replace(f"`orchestrate {verb} ", f"`{line} ")
    )


def leaving_out(
    out: Collection[str], words: Sequence[str], exclude: str | None, command: Sequence[str] = ()
) -> str:
    """The line that leaves these hosts out, too.

    `words` are its verb and options; `exclude` is what they leave out already.
    """
    left_out = f"{exclude},{fold(out)}" if exclude else fold(out)
    line = [*without(words, ("--exclude",)), "--exclude", left_out, *(("--", *command) if command else ())]
    return shlex.join(["orchestrate", *line])


def without(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """The words without these options and their values."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in options:
            kept.append(word)
        elif not equals:
            next(rest, None)
    return kept
