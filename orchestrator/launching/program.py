"""The program that is to be launched, and the code around it, as the checks before a launch ask for them."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path

from orchestrator.launching import code
from orchestrator.model import Inventory
from orchestrator.node.base.paths import filesystem, is_remote
from orchestrator.program import invocation, sources, texts
from orchestrator.program.refusals import Code
from orchestrator.program.sources import SourceFile
from orchestrator.sync.builtin import check_builtin

_LONGEST = 2 << 20  # bytes of a source that is read
_NAMES_TENSORFLOW = re.compile(r"(?i)\b(?:tensorflow|tf_?keras|keras)")


def look(inventory: Inventory, project: code.Project | None, here: Path | None = None) -> Code:
    """Return what the checks may ask; `project` is None for worker_entry.

    Paths are relative to the current folder (`here`), where the tasks run.
    """
    here = here or Path.cwd()
    local = all(host.is_local for host in inventory.hosts)
    cwd = "." if project is None else project.root.cwd or "."
    paths = () if project is None else project.listing.paths
    return Code(
        root=str(here),
        sent=frozenset(posixpath.relpath(path, cwd) for path in paths),
        read=lambda path: _bytes(here / path),
        exists=lambda path: os.path.exists(here / os.path.expanduser(path)),  # noqa: PTH110, PTH111 - Path raises
        executable=lambda path: os.access(here / path, os.X_OK),
        everywhere=lambda path: local or _shared(path),
        real=os.path.realpath,
        prepared=bool(inventory.job.setup),
    )


def read(command: Sequence[str], around: Code) -> tuple[SourceFile, ...]:
    """Read the program, and the modules beside it that it imports, if it is Python or a shell runs it."""
    return sources.read(command, lambda path: text(path, around))


def text(path: str, around: Code) -> str | None:
    data = around.read(path)
    return None if data is None else texts.decoded(data)


def names_tensorflow(command: Sequence[str], around: Code, files: Sequence[SourceFile]) -> bool:
    """Return True for worker_entry, and if a program names TensorFlow or Keras, as far as it can be read."""
    words = tuple(command)
    if not words or words[0].startswith("-"):
        return True
    script = invocation.program(words)
    shell = invocation.shell_text(words, lambda path: text(path, around))
    own = (text(script, around) or "") if script is not None else ""
    return any(map(_NAMES_TENSORFLOW.search, (*words, shell, own, *(one.text for one in files))))


def check_options(command: Sequence[str]) -> None:
    """Let worker_entry's own parser judge its options; a wrong one ends this program with status 2."""
    if command and command[0].startswith("-"):
        check_builtin(command)


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.is_file() and path.stat().st_size <= _LONGEST else None
    except OSError:
        return None


def _shared(path: str) -> bool:
    """Return True if it lies on a file system that other machines have, too."""
    try:
        return is_remote(filesystem(os.path.expanduser(path)))  # noqa: PTH111
    except OSError:
        return False
