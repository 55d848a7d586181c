"""Asks a program, in the job's own environment, and takes its answer from whatever else it prints."""

from __future__ import annotations

import os

from ..base.annotations import Callable
from ..base.program import Said, listen
from ..task import environ

_SECONDS = 45.0  # a cold network file system, and a user's setup


def ask(
    argv: Callable[[str], list[str]],
    python: str,
    setup: str | None,
    env: dict[str, str] | None = None,
) -> tuple[list[str] | None, str]:
    """The fields a program printed between two marks, separated by NUL; or None and why there are none.

    `argv` makes its command line from the mark: the user's setup may print before it, and profiles too.
    """
    mark = os.urandom(8).hex()
    spec = {"argv": argv(mark), "python": python, "setup": setup, "env": env or {}}
    command, whole = environ.of_task(spec, {})
    try:
        said = listen(command, whole, _SECONDS)
    except OSError as error:
        return None, f"{os.fsdecode(command[0])}: {error.strerror or error}"
    if said.why:
        return None, said.why
    answer = said.out.decode("utf-8", "surrogateescape").split(mark)
    if len(answer) != 3:
        return None, _last_words(said.err) or f"it said nothing and {_end(said)}"
    return answer[1].split("\0"), ""


def _end(said: Said) -> str:
    return f"was {said.killed}" if said.killed else f"ended with {said.status}"


def _last_words(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else ""
