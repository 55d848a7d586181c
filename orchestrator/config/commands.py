"""Readers of what is run: a command is an argv that no shell ever sees; `setup` is the shell text."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePath
from typing import Any

from orchestrator.config.mistakes import Wrong, show
from orchestrator.config.values import kind

_SHELLS = {"bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh"}
_BUILT_IN = {"cd", "export", "source", ".", "alias", "ulimit", "umask", "set", "unset", "exec", "eval"}
_OPERATORS = {"&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1", "&>"}
_EXPANDED = re.compile(r"\$[A-Za-z_{(]|`|^~")


def notify(value: Any) -> tuple[str, ...]:
    """The argv of a command of this machine."""
    if value in ("", []):
        raise Wrong("is empty; leave it out if nobody is to be told")
    return _argv(value, "write bash -c '...'")


def command(value: Any) -> tuple[str, ...]:
    """An argv; a text is split as a shell would split it."""
    return _argv(value, "use `setup`, or bash -c '...'")


def _argv(value: Any, way: str) -> tuple[str, ...]:
    """Read a command; `way` is the advice to whoever writes a line for a shell."""
    if isinstance(value, str):
        argv = _split(value)
    elif isinstance(value, list):
        argv = value
        for item in argv:
            if not isinstance(item, str):
                raise Wrong(f'must be a list of texts; write "{show(item)}" in quotes')
    else:
        raise Wrong(f'must be a text or a list such as ["train.py", "--epochs", "3"], not {kind(value)}')
    if not argv or not argv[0].strip():
        raise Wrong("is empty; leave the key out to run worker_entry")
    if any("\0" in word for word in argv):
        raise Wrong("holds a NUL character")
    if argv[0] in _BUILT_IN or "=" in argv[0].partition("/")[0]:
        raise Wrong(f"starts with {show(argv[0])}, which only a shell knows; use `setup` or `env`")
    if isinstance(value, str) and PurePath(argv[0]).name not in _SHELLS:
        _refuse_shell_words(argv, way)
    return tuple(argv)


class NeedsShell(Wrong):
    """A command has a word that only a shell gives its meaning."""


def _refuse_shell_words(argv: list[str], way: str) -> None:
    """Words that would reach the program as they are, which nobody who writes one line means."""
    for place, word in enumerate(argv):
        if word in _OPERATORS or word.endswith(";"):
            raise NeedsShell(f"holds {show(word)}, but no shell reads it; {way}")
        # The node opens out ~ in the program itself.
        if _EXPANDED.search(word) and (place or not word.startswith("~")):
            raise NeedsShell(f"holds {show(word)}, but no shell fills it in; write it out, or bash -c '...'")


def shell_text(value: Any) -> str:
    """Not empty; lines and tabs are welcome."""
    if not isinstance(value, str):
        raise Wrong(f"must be a text in quotes, not {kind(value)}")
    if not value.strip():
        raise Wrong("is empty; leave the key out if there is nothing to run")
    if "\0" in value:
        raise Wrong("holds a NUL character")
    return value


def validate(value: Any) -> str:
    """A command line of the user's own."""
    if value is False:
        raise Wrong("must be a command line; to launch without validation use --validate never")
    given = shell_text(value)
    _split(given)
    return given


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        wrong = "a quote is not closed" if "quotation" in str(error) else "it ends with a backslash"
        raise Wrong(f"cannot be split into words: {wrong} in {show(line)}") from error
