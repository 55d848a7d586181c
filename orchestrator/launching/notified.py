"""The command that `--notify` and `[job] notify` name, as this machine has it."""

from __future__ import annotations

import os
import shutil

from orchestrator.config.mistakes import Wrong
from orchestrator.config.values import NeedsShell, notify
from orchestrator.errors import UsageError
from orchestrator.model import Job


def command(job: Job, wanted: str | None) -> tuple[str, ...]:
    """The argv that tells of the end, its program as an absolute path; () for none.

    Raise UsageError for one that could not be run: at the end of a night it would be too late.
    """
    try:
        argv = job.notify if wanted is None else notify(wanted)
    except Wrong as wrong:
        shell = wanted is not None and isinstance(wrong, NeedsShell) and not set(wanted) & set("'\"\\$`")
        hint = (
            f"`--notify \"bash -c '{wanted}'\"`" if shell else "`--notify 'mail -s trained me@example.org'`"
        )
        raise UsageError(f"--notify {wrong}", hint=hint) from wrong
    if not argv:
        return ()
    program = shutil.which(os.path.expanduser(argv[0]))  # noqa: PTH111 - a name without a slash stays one
    if program is None:
        raise UsageError(
            f"--notify: this machine has no program {argv[0]}",
            why="it is run here, by no shell, when the run has ended",
            hint="write its whole path; a script needs `chmod +x`",
        )
    return (os.path.abspath(program), *argv[1:])  # noqa: PTH100 - a link is run by its own name
