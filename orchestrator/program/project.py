"""The folder that goes to the hosts, and the script of a command in it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchestrator.program import invocation


@dataclass(frozen=True)
class Code:
    """The folder that goes to the hosts, as far as checks ask; paths are relative to it, with /."""

    root: str
    sent: frozenset[str]
    read: Callable[[str], str | None]  # the text of a file, None when there is none
    raw: Callable[[str], bytes | None]  # the same as its bytes
    head: Callable[[str], bytes]  # how a file of any length begins, b"" when there is none
    exists: Callable[[str], bool]  # also of what is not sent; absolute paths and `~/` too
    folder: Callable[[str], bool]  # whether it is one
    executable: Callable[[str], bool]
    installed: Callable[[str], bool]  # whether this machine has a program or a Python package of that name
    everywhere: Callable[[str], bool]  # whether the hosts see the same file under an absolute path
    real: Callable[[str], str] = str  # an absolute path without the links in it
    pythonpath: bool = False  # whether tasks look for modules elsewhere, too
    prepared: bool = False  # whether a `setup` runs before, which may make what is not there


def script_of(command: tuple[str, ...]) -> str | None:
    """The file of it that a command runs; None for a program that is looked for on PATH."""
    name = invocation.program(command)
    if name is None:
        return None
    if name.endswith((".sh", ".bash")) and name == command[0] and "/" not in name:
        return None  # a program of that name may be on PATH
    if invocation.PYTHON.match(PurePosixPath(invocation.unwrapped(command)[0]).name):
        return name  # Python takes a file of any name
    return name if name.endswith((*invocation.SCRIPTS, ".ipynb")) else None


def file_of(command: tuple[str, ...], code: Code) -> str | None:
    """The same, or the program itself where it is a path in the folder: `./train`, `build/train`."""
    name = script_of(command)
    if name is None and not code.prepared and "/" in command[0]:
        name = command[0]
    return name


def normal(name: str) -> str:
    """A path as the names of what is sent are written."""
    parts: list[str] = []
    for part in PurePosixPath(name).parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)
