"""The one door between words from elsewhere and the terminal: all that verbs print goes through here."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from orchestrator.text import json_safe, plain


def say(*lines: str) -> None:
    """Print lines on stdout, each made harmless."""
    show(sys.stdout, lines)


def tell(*lines: str) -> None:
    """Print lines about the work on stderr; no word is cut at a terminal's edge."""
    show(sys.stderr, _fitting(lines) if sys.stderr.isatty() else lines)


def width() -> int | None:
    """Return the cells of a line on stdout; None where no terminal bounds it."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _fitting(lines: Sequence[str]) -> list[str]:
    from orchestrator.render.wrap import wrapped

    return wrapped(lines, shutil.get_terminal_size().columns)


def facts(*lines: str | bytes) -> None:
    """Print lines of JSON on stdout."""
    show(sys.stdout, (line.decode() if isinstance(line, bytes) else line for line in lines), json=True)


def show(stream: TextIO, lines: Iterable[str], *, json: bool = False) -> None:
    """Write lines; what the stream's encoding cannot say is written as an escape."""
    encoding = stream.encoding or "utf-8"
    for line in lines:
        text = json_safe(line.encode("utf-8", "backslashreplace")).decode() if json else plain(line)
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
