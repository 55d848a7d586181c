"""The entry point: dispatches to a verb's file and turns whatever happens into an exit status."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from orchestrator.cli.parser import parse
from orchestrator.errors import ExitStatus, OrchestrateError


def run() -> None:
    """The console script."""
    _open_streams()
    sys.exit(main(sys.argv[1:]))


def _open_streams() -> None:
    """Have 0, 1 and 2 open, whatever a cron job or `>&-` closed: else a file of ours gets their number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - it lives as long as we do
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit status; errors become text on stderr."""
    debug = "--debug" in _ours(argv)
    try:
        arguments = parse(argv)
        _keep_logging_off_the_terminal()
        verb = importlib.import_module(f"orchestrator.cli.{arguments.verb}")
        return int(verb.main(arguments))
    except OrchestrateError as error:
        if debug:
            raise
        from orchestrator.render.errors import report

        report(error, sys.stderr)
        return int(error.status)
    except KeyboardInterrupt:
        return int(ExitStatus.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read us has gone; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitStatus.OK)
    except Exception as error:
        if debug:
            raise
        print(
            f"error: a bug in orchestrate: {type(error).__name__}: {error}\n"
            "  try: the same with --debug, and report what it prints",
            file=sys.stderr,
        )
        return int(ExitStatus.BUG)


def _keep_logging_off_the_terminal() -> None:
    """Warnings of ours and of libraries belong in a run's debug.log; here errors are said in our words."""
    import logging

    logging.lastResort = logging.NullHandler()


def _ours(argv: Sequence[str]) -> Sequence[str]:
    """The arguments before the user's command."""
    return argv[: list(argv).index("--")] if "--" in argv else argv
