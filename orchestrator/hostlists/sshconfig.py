"""The names that ~/.ssh/config has entries for, those of included files too."""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

_DEEPEST = 16  # as ssh does with Include
_LINE = re.compile(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*)")


def aliases(file: Path) -> tuple[str, ...]:
    """In their order, each once; patterns name no host. A file that cannot be read has none."""
    return tuple(dict.fromkeys(_aliases(file, 0)))


def _aliases(file: Path, depth: int) -> Iterator[str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        keyword, words = match[1].lower(), _words(match[2])
        if keyword == "host":
            yield from (word for word in words if not re.search(r"[*?!]", word))
        elif keyword == "include" and depth < _DEEPEST:
            for word in words:
                for found in sorted(glob.glob(str(_included(word)))):  # noqa: PTH207 - the pattern may be absolute
                    yield from _aliases(Path(found), depth + 1)


def _included(word: str) -> Path:
    """A relative path is below ~/.ssh, wherever the file is that includes it."""
    return Path("~/.ssh").expanduser() / Path(word).expanduser()


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return []
