"""Looks for what a job starts with: its program, and paths among its arguments."""

from __future__ import annotations

import os
from typing import Any, Callable

from ..task import environ

_FIND = 'printf "%s%s%s" "$1" "$(command -v -- "$2")" "$1"'
# Not in this process: a file system that hangs must not keep it.
_ABSENT = """
mark=$1; shift; printf %s "$mark"; place=0
for path in "$@"; do [ -e "$path" ] || printf "%s " "$place"; place=$((place + 1)); done
printf %s "$mark"
"""


def look(needs: dict[str, Any]) -> dict[str, Any]:
    """Return {"program": found, "paths": those that are not there}; what cannot be asked is there."""
    python, setup = needs["python"], needs.get("setup")
    return {
        "program": _program(needs["program"], python, setup),
        "paths": _absent(list(needs["paths"]), python),
    }


def suffices(had: dict[str, Any]) -> bool:
    """Return True if a task can start with that; a path may be one that it makes."""
    return bool(had["program"])


def _program(name: str | None, python: str, setup: str | None) -> bool:
    if not name:
        return True
    if not setup:  # what a shell would look at is known
        command, env = environ.of_task({"argv": [name], "python": python}, {})
        path = environ.find_program(os.fsdecode(command[0]), env.get(b"PATH", os.defpath.encode()))
        return path is not None and os.path.isfile(path) and os.access(path, os.X_OK)
    fields = _ask(lambda mark: ["sh", "-c", _FIND, "sh", mark, name], python, setup)
    return fields is None or bool(fields[0].strip())


def _absent(paths: list[str], python: str) -> list[int]:
    if not paths:
        return []
    own = [os.path.expanduser(path) if path.startswith("~/") else path for path in paths]
    fields = _ask(lambda mark: ["sh", "-c", _ABSENT, "sh", mark, *own], python, None)
    return [int(place) for place in fields[0].split()] if fields is not None else []


def _ask(argv: Callable[[str], list[str]], python: str, setup: str | None) -> list[str] | None:
    from . import question  # it brings `subprocess`: 5 ms that most jobs do not need

    return question.ask(argv, python, setup).fields
