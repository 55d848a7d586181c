"""What is wrong with a command before anything is sent: one function for each mistake. Pure.

To add a check, write a function in the file of its subject and name it in CHECKS. A check that cannot be
sure says nothing: the hosts may have what this machine has not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from orchestrator.errors import UsageError
from orchestrator.program import contents, location, shellwords
from orchestrator.program.project import Code

Check: TypeAlias = Callable[[tuple[str, ...], Code], UsageError | None]

CHECKS: tuple[Check, ...] = (
    shellwords.background,
    shellwords.operators,
    shellwords.shell_line,
    shellwords.assignment,
    shellwords.of_a_shell,
    location.folder,
    location.split_name,
    contents.notebook,
    shellwords.options_alone,
    location.whole_path,
    location.outside,
    location.missing,
    location.ignored,
    contents.syntax,
    location.module,
    contents.line_ends,
    location.not_a_program,
)


def check(command: tuple[str, ...], code: Code) -> None:
    """Raise UsageError for the first mistake; `command` is what would run, without the host's Python."""
    if not command:
        return
    for one in CHECKS:
        error = one(command, code)
        if error is not None:
            raise error
