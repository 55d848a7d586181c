"""Ask a program, in the job's own environment, and take its answer from whatever else it prints."""

from __future__ import annotations

import os
from typing import Any, Callable, List

from ..base.program import listen
from ..task import environ

_SECONDS = 45.0  # a cold network file system, and a user's setup
_WORDS, _LINES = 2000, 3  # characters of what is printed as errors, and its last lines

# Not in this process: a file system that hangs must not keep it.
_HAVE = """
mark=$1 program=$2; shift 2; printf %s "$mark"; place=0
file() { [ -f "$1" ] && [ -x "$1" ]; }
there() {
    case $1 in */*) file "$1"; return ;; esac
    IFS=:; for at in $PATH; do file "$at/$1" && return; done; return 1
}
[ -z "$program" ] || (there "$program") || printf "program "
for path in "$@"; do [ -e "$path" ] || printf "%s " "$place"; place=$((place + 1)); done
printf %s "$mark"
"""


class Answer:
    """Parts of what a program printed, and how it ended."""

    def __init__(
        self, parts: List[str], ended: str, signal: int | None = None, setup: dict[str, Any] | None = None
    ) -> None:
        self.parts = parts  # between marks
        self.ended = ended  # why it came to no good end; "" when it did
        self.signal = signal  # that ended it, and was not ours
        self.setup = setup  # {"status", "words"}: how the user's setup ended, and its errors

    @property
    def fields(self) -> list[str] | None:
        """The fields, separated by NUL, of an answer of one part; None where there is none."""
        return self.parts[0].split("\0") if len(self.parts) == 1 else None

    @property
    def why(self) -> str:
        """The reason why an answer has no fields; "" where it has."""
        return "" if self.fields is not None else self.ended or "it said nothing"


def ask(
    argv: Callable[[str], list[str]],
    python: str,
    setup: str | None,
    env: dict[str, str] | None = None,
    seconds: float = _SECONDS,
) -> Answer:
    """Run a program; its answer is what it prints between two marks: a setup and profiles print, too.

    `argv` makes its command line from the mark.
    """
    mark = os.urandom(8).hex()
    marked = f"{setup}\nprintf {mark}$?{mark} >&2" if setup else None
    spec = {"argv": argv(mark), "python": python, "setup": marked, "env": env or {}}
    command, whole = environ.of_task(spec, {})
    whole[b"PYTHONDONTWRITEBYTECODE"] = b"1"  # a look changes nothing
    home = os.path.expanduser("~")
    try:
        output = listen(command, whole, seconds, home if os.access(home, os.X_OK) else "/")
    except OSError as error:
        return Answer([], f"{os.fsdecode(command[0])}: {error.strerror or error}")
    errors = output.err.decode("utf-8", "replace").split(mark)
    words = "".join(errors[::2]).strip()[-_WORDS:]
    last = " / ".join([line.strip() for line in words.split("\n") if line.strip()][-_LINES:])
    ended = output.why or output.killed
    if output.status and not ended:
        ended = last or f"it ended with {output.status}"
    parts = output.out.decode("utf-8", "surrogateescape").split(mark)
    # A setup that ended its shell has that status.
    status = errors[1] if len(errors) > 1 else str(output.status)
    end = {"status": int(status) if status.isdigit() else None, "words": errors[0].strip()[-_WORDS:]}
    return Answer(parts[1::2], ended, -output.status if output.killed else None, end if setup else None)


def have(needs: dict[str, Any]) -> dict[str, Any]:
    """Return {"program": it is there, "paths": those that are not there}; what cannot be asked is there."""
    words = [needs["program"] or "", *map(os.path.expanduser, needs["paths"])]
    answer = ask(
        lambda mark: ["/bin/sh", "-c", _HAVE, "sh", mark, *words], needs["python"], needs.get("setup")
    )
    missing = (answer.fields or [""])[0].split()
    return {
        "program": "program" not in missing,
        "paths": [int(place) for place in missing if place != "program"],
    }
