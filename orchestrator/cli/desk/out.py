"""The only path from external text to the terminal: everything that verbs print goes through here."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TextIO

from orchestrator.render.grid import wrapped
from orchestrator.text import json_safe, plain

if TYPE_CHECKING:
    from orchestrator.events import Event, Stamped


def say(*lines: str) -> None:
    """Print lines on stdout, each made harmless."""
    show(sys.stdout, lines)


def unchanged(text: str) -> None:
    """Write a text for another program; a terminal receives it in harmless form."""
    if sys.stdout.isatty():
        say(*text.removesuffix("\n").split("\n"))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))


def tell(*lines: str) -> None:
    """Print lines about the work on stderr, wrapped at word boundaries on a terminal."""
    if sys.stderr.isatty():
        lines = tuple(wrapped(lines, shutil.get_terminal_size().columns))
    show(sys.stderr, lines)


def width() -> int | None:
    """Return the cells of a line on stdout; None if it is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def height() -> int | None:
    """Return the lines that fit on stdout with a prompt below them; None if it is not a terminal."""
    return shutil.get_terminal_size().lines - 1 if sys.stdout.isatty() else None


def facts(*lines: str | bytes) -> None:
    """Print lines of JSON on stdout."""
    show(sys.stdout, (line.decode() if isinstance(line, bytes) else line for line in lines), json=True)


def show(stream: TextIO, lines: Iterable[str], *, json: bool = False) -> None:
    """Write lines; characters that the stream's encoding lacks are written as escapes."""
    encoding = stream.encoding or "utf-8"
    for line in lines:
        text = json_safe(line.encode("utf-8", "backslashreplace")).decode() if json else plain(line)
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


@contextlib.contextmanager
def bars(*, json: bool) -> Iterator[Callable[[Event], None]]:
    """While the block runs, each event is a line of JSON, or hosts at the same step share a row.

    Results are printed after the block, once for all hosts with the same result.
    """
    from orchestrator.events import DataPlaced, EnvironmentMade, Noted, Stepped, encode
    from orchestrator.render.progress import steps
    from orchestrator.render.words import placed
    from orchestrator.store.bus import Bus

    done: list[DataPlaced | EnvironmentMade] = []
    try:
        with steps(quiet=json) as draw:

            def show(stamped: Stamped) -> None:
                event = stamped.event
                if json:
                    facts(encode(stamped))
                    sys.stdout.flush()
                elif isinstance(event, Stepped):
                    draw(event)
                elif isinstance(event, Noted):
                    tell(event.text)
                elif isinstance(event, DataPlaced | EnvironmentMade):
                    draw(Stepped(event.host, ""))
                    done.append(event)

            yield Bus(show).emit
    finally:
        tell(*placed(done))
