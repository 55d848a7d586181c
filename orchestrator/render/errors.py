"""The block in which a person reads an error: error, why, try. Pure but for `report`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TextIO

from orchestrator.errors import HostError, OrchestrateError, SeveralErrors
from orchestrator.render import fold
from orchestrator.render.sink import Sink, colours
from orchestrator.render.wrap import wrapped
from orchestrator.text import plain

_HEAD = re.compile(r"^(error|warning):")
# With these words begins what is said of a host; a node may say a sentence of its own.
_NOW = {
    "answers",
    "cannot",
    "does",
    "fails",
    "follows",
    "has",
    "is",
    "logs",
    "needs",
    "says",
    "shows",
    "wants",
}
_PAST = {"broke", "closed", "could", "did", "gave", "had", "hung", "lost", "refused", "sent", "waited", "was"}
_VERBS = {*_NOW, *_PAST, "will"}
_COMMAND = re.compile(r"`[^`]+`")
_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m"}


def block(what: str, why: str = "", hint: str = "", *, word: str = "error") -> list[str]:
    """The lines of one error; texts of several lines are indented, nothing raw gets through."""
    return [*_part(f"{word}: ", what), *_part("  why: ", why), *_part("  try: ", hint)]


def lines(error: OrchestrateError) -> list[str]:
    """One error, or several one after another; hosts that fail alike are folded into one block."""
    errors = tuple(_flat(error))
    hosts = [one for one in errors if isinstance(one, HostError)]
    others = [one for one in errors if not isinstance(one, HostError)]
    folded = fold.alike((one.host, (one.what, one.why, one.hint)) for one in hosts)
    found = [line for names, texts in folded for line in host_block(names, *texts)]
    return found + [line for one in others for line in block(one.what, one.why, one.hint)]


def host_block(
    hosts: tuple[str, ...], what: str, why: str = "", hint: str = "", *, word: str = "error"
) -> list[str]:
    """`gpu-02 refused the login`, or `gpu-[02-04]: refused the login`."""
    if len(hosts) == 1 and what.partition(" ")[0].removesuffix(":") in _VERBS:
        return block(f"{hosts[0]} {what}", why, hint, word=word)
    return block(f"{fold.names(hosts)}: {what}", why, _for_all(hosts, hint), word=word)


def _for_all(hosts: tuple[str, ...], hint: str) -> str:
    """A hint whose commands name the first of several hosts: it is so for the others."""
    alone = len(hosts) == 1 or not any(
        len(fold.parted(hosts[0], text)) > 1 for text in _COMMAND.findall(hint)
    )
    return hint if alone else f"{hint} (likewise for the others)"


def coloured(text: str) -> str:
    """Colour the first word of a line that begins a block."""
    return _HEAD.sub(lambda match: f"{_COLOURS[match[1]]}{match[0]}\x1b[0m", text)


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


def _flat(error: OrchestrateError) -> Iterable[OrchestrateError]:
    if not isinstance(error, SeveralErrors):
        yield error
        return
    for one in error.errors:
        yield from _flat(one)


def _part(label: str, text: str) -> list[str]:
    """`label` and the text's lines, the further ones below the first; nothing for an empty text."""
    rows = [plain(row).rstrip() for row in text.strip("\n").split("\n")] if text.strip() else []
    return [((" " * len(label) if number else label) + row).rstrip() for number, row in enumerate(rows)]
