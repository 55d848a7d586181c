"""The block in which a person reads an error: error, why, try. Pure but for `report`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TextIO

from orchestrator.errors import HostError, OrchestrateError, SeveralErrors
from orchestrator.events import CheckReported, Level
from orchestrator.render import fold
from orchestrator.render.grid import wrapped
from orchestrator.render.sink import Sink, colours
from orchestrator.text import plain

_HEAD = re.compile(r"^(?:(error|warning):|run \S+ (succeeded|failed)\b)")
# A sentence about a host that begins with its verb; a node may say one of its own.
_VERB = re.compile(r"(?!(?:the|an?|no|its?|not|what)\b)[a-z]+(?:[: ]|$)")
_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "failed": "\x1b[1;31m", "succeeded": "\x1b[1;32m"}


def block(what: str, why: str = "", hint: str = "", *, word: str = "error") -> list[str]:
    """The lines of one error; texts of several lines are indented, nothing raw gets through."""
    return [*_part(f"{word}: ", what), *_part("  why: ", why), *_part("  try: ", hint)]


def lines(error: OrchestrateError) -> list[str]:
    """One error, or several one after another; hosts that fail alike are folded into one block."""
    errors = error.errors if isinstance(error, SeveralErrors) else (error,)
    hosts = [one for one in errors if isinstance(one, HostError)]
    others = [one for one in errors if not isinstance(one, HostError)]
    folded = fold.alike((one.host, (one.what, one.why, one.hint)) for one in hosts)
    found = [line for names, texts in folded for line in host_block(names, *texts)]
    return found + [line for one in others for line in block(one.what, one.why, one.hint)]


def host_block(
    hosts: tuple[str, ...], what: str, why: str = "", hint: str = "", *, word: str = "error"
) -> list[str]:
    """`gpu-02 refused the login`, or `gpu-[02-04]: refused the login`."""
    if len(hosts) == 1:
        return block(f"{hosts[0]}{' ' if _VERB.match(what) else ': '}{what}", why, hint, word=word)
    return block(f"{fold.names(hosts)}: {what}", why, hint, word=word)


def coloured(text: str) -> str:
    """Color the first word of a line that begins a block, and how a run ended."""
    match = _HEAD.match(text)
    if match is None:
        return text
    start, end = 0 if match[1] else match.start(2), match.end()
    return f"{text[:start]}{_COLOURS[match[1] or match[2]]}{text[start:end]}\x1b[0m{text[end:]}"


def report(error: OrchestrateError, stream: TextIO, width: int | None = None) -> None:
    """Write the error, in colour on a terminal; a stream that nobody reads any more is no second error.

    `width` is that of lines which break between words.
    """
    try:
        write(wrapped(lines(error), width), stream)
    except (OSError, ValueError):  # ValueError: it is closed
        return


def write(said: Iterable[str], stream: TextIO) -> None:
    """Write lines that are harmless already, and those that begin a block in colour on a terminal."""
    colour = colours(stream)
    Sink(stream).write("".join(f"{coloured(line) if colour else line}\n" for line in said))


def problems(checks: Sequence[CheckReported]) -> list[str]:
    """The checks that warn or fail, in blocks; failures last: they are what one looks for first.

    What hosts have alike is said once.
    """
    said: list[str] = []
    for level, word in ((Level.WARN, "warning"), (Level.FAIL, "error")):
        of_level = [
            (check.host, (check.check, check.found, check.why, check.hint))
            for check in checks
            if check.level is level
        ]
        for hosts, (slug, what, why, hint) in fold.alike(of_level):
            said += block(f"{fold.names(hosts)}: {slug}: {what}", why, hint, word=word)
    return said


def _part(label: str, text: str) -> list[str]:
    """`label` and the text's lines, the further ones below the first; nothing for an empty text."""
    rows = [plain(row).rstrip() for row in text.strip("\n").split("\n")] if text.strip() else []
    return [((" " * len(label) if number else label) + row).rstrip() for number, row in enumerate(rows)]
