"""Whether TensorFlow may be in what a command starts, as far as that can be read. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

from orchestrator.program import invocation

_NAMED = re.compile(r"(?i)tensorflow|keras|\btf")
# What starts programs that are not read here.
_STARTS = re.compile(r"(?i)python|rscript|\b(?:make|just|conda|mamba|micromamba|poetry|uv|pipenv|pdm)\b")


def may_train(
    command: tuple[str, ...], sources: Iterable[str], shell: str, read: Callable[[str], str | None]
) -> bool:
    """`sources` are the texts of its Python files, `shell` is what a shell reads of it."""
    if not command or command[0].startswith("-"):
        return True  # worker_entry
    texts = tuple(sources) or _inline(command)
    if texts:
        return any(map(_NAMED.search, texts))
    script = invocation.program(command) or command[0]
    text = read(script) or ""
    if PurePosixPath(script).suffix in (".R", ".r"):
        return _NAMED.search(text) is not None
    words = " ".join((*command, shell, text))
    return _NAMED.search(words) is not None or _STARTS.search(words) is not None


def _inline(command: tuple[str, ...]) -> tuple[str, ...]:
    """The code of `python -c CODE`."""
    words = invocation.unwrapped(command)
    if words and invocation.PYTHON.match(PurePosixPath(words[0]).name) and "-c" in words[:-1]:
        return (words[words.index("-c") + 1],)
    return ()
