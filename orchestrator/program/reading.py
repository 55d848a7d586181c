"""The programs of a launch, as far as their text can be read. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from orchestrator.program import findings, invocation, sources
from orchestrator.program.refusals import Code
from orchestrator.program.sources import SourceFile


class Program(Struct, frozen=True):
    """One of the commands of a launch."""

    command: tuple[str, ...]
    sources: tuple[SourceFile, ...] = ()  # the program and the modules beside it, where they are Python
    hiding: tuple[SourceFile, ...] = ()  # files beside it that Python imports in place of others
    shell: str = ""  # the shell script that runs it
    own_paths: Mapping[str, str] = {}  # paths in it that only this machine has, each with its line
    installed: str | None = None  # the module that it runs from the package installed on each host


def read_program(command: tuple[str, ...], code: Code) -> Program:
    """Read the program of a command, and what it imports of the code."""
    files = sources.read(command, code.text)
    beside = findings.hiding(command, code.sent, files)
    hiding = tuple(SourceFile(path, code.text(path) or "") for path in beside)
    own = findings.own_paths(
        command, files, code.links, lambda path: code.exists(path) and not code.everywhere(path)
    )
    shell = invocation.shell_text(command, code.text)
    return Program(command, files, hiding, shell, own, sources.console_script(command, code.text))
