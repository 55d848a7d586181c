"""The block in which users read an error: error, why, try. Pure except for `report`."""

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TextIO

from orchestrator.errors import HostError, OrchestrateError, SeveralErrors
from orchestrator.events import CheckReported, HostFailed, Level
from orchestrator.render import fold
from orchestrator.render.grid import wrapped
from orchestrator.render.sink import Sink, colours
from orchestrator.text import plain

_HEAD = re.compile(r"^(?:(error|warning):|run \S+ (succeeded|failed)\b)")
# A sentence about a host that begins with its verb; a node may send one of its own.
_VERB = re.compile(r"(?!(?:the|an?|no|its?|not|what)\b)([a-z]+)(?=[: ]|$)")
_OF_SEVERAL = {"has": "have", "is": "are", "was": "were", "does": "do"}
_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "failed": "\x1b[1;31m", "succeeded": "\x1b[1;32m"}


def block(what: str, why: str = "", hint: str = "", *, word: str = "error") -> list[str]:
    """Return the lines of one error; texts of several lines are indented, and all are harmless."""
    return [*_part(f"{word}: ", what), *_part("  why: ", why), *_part("  try: ", hint)]


def lines(error: OrchestrateError) -> list[str]:
    """Return one error, or several in sequence; hosts with the same failure are folded into one block."""
    errors = error.errors if isinstance(error, SeveralErrors) else (error,)
    hosts = [item for item in errors if isinstance(item, HostError)]
    others = [item for item in errors if not isinstance(item, HostError)]
    return of_hosts(hosts) + [line for item in others for line in block(item.what, item.why, item.hint)]


def of_hosts(failures: Iterable[HostError | HostFailed], *, word: str = "error") -> list[str]:
    """Return the blocks of hosts, with those that failed alike in one."""
    folded = fold.alike((failure.host, (failure.what, failure.why, failure.hint)) for failure in failures)
    shown = folded[: fold.MOST]
    blocks = (block(_about(hosts, what), why, hint, word=word) for hosts, (what, why, hint) in shown)
    return [*chain.from_iterable(blocks), *fold.rest(folded)]


def _about(hosts: Sequence[str], what: str) -> str:
    """`gpu-02 has no python3`, `gpu-[02-04] have no python3`, or `gpu-02: the login ended`."""
    if not (verb := _VERB.match(what)):
        return f"{fold.names(hosts)}: {what}"
    plural = _OF_SEVERAL.get(verb[1], verb[1].removesuffix("s"))
    return f"{fold.names(hosts)} {plural if len(hosts) > 1 else verb[1]}{what[verb.end() :]}"


def coloured(text: str) -> str:
    """Color the first word of a line that begins a block, and how a run ended."""
    match = _HEAD.match(text)
    if match is None:
        return text
    start, end = 0 if match[1] else match.start(2), match.end()
    return f"{text[:start]}{_COLOURS[match[1] or match[2]]}{text[start:end]}\x1b[0m{text[end:]}"


def report(error: OrchestrateError, stream: TextIO, width: int | None = None) -> None:
    """Write the error, in color on a terminal; a closed stream does not cause another error.

    `width` applies to lines that may break between words.
    """
    try:
        write(wrapped(lines(error), width), stream)
    except (OSError, ValueError):  # ValueError: it is closed
        return


def write(text: Iterable[str], stream: TextIO) -> None:
    """Write lines that are already harmless, and color those that begin a block on a terminal."""
    colour = colours(stream)
    Sink(stream).write("".join(f"{coloured(line) if colour else line}\n" for line in text))


def problems(checks: Sequence[CheckReported]) -> list[str]:
    """Return the checks that warn or fail as blocks, with failures last, where users look first.

    What several hosts share is shown once.
    """
    output: list[str] = []
    for level, word in ((Level.WARN, "warning"), (Level.FAIL, "error")):
        of_level = [
            (check.host, (check.check, check.found, check.why, check.hint))
            for check in checks
            if check.level is level
        ]
        folded = fold.alike(of_level)
        for hosts, (slug, what, why, hint) in folded[: fold.MOST]:
            output += block(f"{fold.names(hosts)}: {slug}: {what}", why, hint, word=word)
        output += fold.rest(folded)
    return output


def _part(label: str, text: str) -> list[str]:
    """Return `label` and the text's lines, further ones below the first; nothing for an empty text."""
    rows = [plain(row).rstrip() for row in text.strip("\n").split("\n")] if text.strip() else []
    return [((" " * len(label) if number else label) + row).rstrip() for number, row in enumerate(rows)]
