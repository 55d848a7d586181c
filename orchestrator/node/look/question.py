"""Ask a program, in the job's own environment, and take its answer from whatever else it prints."""

from __future__ import annotations

import os
from typing import Any, Callable

from ..base.program import Said, listen
from ..task import environ

_SECONDS = 45.0  # a cold network file system, and a user's setup
_WORDS = 2000  # characters of what a setup prints


class Answer:
    """Fields of an answer, or why there are none; and what the user's `setup` did before."""

    def __init__(self, fields: list[str] | None, error: str, setup: dict[str, Any] | None) -> None:
        self.fields = fields
        self.error = error
        self.setup = setup  # {"status", "words"}: its exit status, and what it printed as errors


def ask(
    argv: Callable[[str], list[str]], python: str, setup: str | None, env: dict[str, str] | None = None
) -> Answer:
    """Run a program; its answer is what it printed between two marks, as fields separated by NUL.

    `argv` makes its command line from the mark: the user's setup may print before it, and profiles too.
    """
    mark = os.urandom(8).hex()
    spec = {"argv": argv(mark), "python": python, "setup": _marked(setup, mark), "env": env or {}}
    command, whole = environ.of_task(spec, {})
    try:
        output = listen(command, whole, _SECONDS)
    except OSError as error:
        return Answer(None, f"{os.fsdecode(command[0])}: {error.strerror or error}", None)
    if output.why:
        return Answer(None, output.why, None)
    # What came before the setup is the profile's; what came after it is the program's.
    errors = output.err.decode("utf-8", "replace").split(mark)
    answer = output.out.decode("utf-8", "surrogateescape").split(mark)
    fields = answer[1].split("\0") if len(answer) == 3 else None
    why = "" if fields is not None else _last_line(errors) or f"it said nothing and {_end(output)}"
    return Answer(fields, why, _setup(errors, output.status) if setup and len(errors) > 1 else None)


def _marked(setup: str | None, mark: str) -> str | None:
    """Put marks among the errors of a setup: where it begins, and with which status it ends."""
    return f"printf {mark} >&2\n{setup}\nprintf {mark}$?{mark} >&2" if setup else None


def _setup(errors: list[str], status: int) -> dict[str, Any]:
    """The status and the errors of a setup; one that ended its shell has that status."""
    ended = errors[2] if len(errors) > 2 else str(status)
    return {"status": int(ended) if ended.isdigit() else None, "words": errors[1].strip()[-_WORDS:]}


def _end(output: Said) -> str:
    return f"was {output.killed}" if output.killed else f"ended with {output.status}"


def _last_line(errors: list[str]) -> str:
    lines = errors[-1].strip().splitlines()
    return lines[-1][:500] if lines else ""
