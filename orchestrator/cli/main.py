"""The entry point: dispatches to a verb's file and turns whatever happens into an exit status.

What is not needed to take a Ctrl-C is imported later: while this file is imported nobody would.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence

from orchestrator.errors import ExitStatus, OrchestrateError, UsageError


def run() -> None:
    """The console script."""
    _open_streams()
    try:
        status = main(sys.argv[1:])
    except KeyboardInterrupt:
        status = int(ExitStatus.INTERRUPTED)
    # Python gives SIGINT back to the system before its last steps: one more Ctrl-C then would end us by the
    # signal, whatever the status is.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)


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
        return _flushed(_verb(argv))
    except OrchestrateError as error:
        if debug:
            raise
        return _said(error)
    except KeyboardInterrupt:
        return int(ExitStatus.INTERRUPTED)
    except BrokenPipeError:
        _forget_stdout()
        return int(ExitStatus.OK)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            _forget_stdout()  # what it holds would fail again at exit
            what = error.filename or "what was to be shown"
            return _said(UsageError(f"{what} could not be written", why=error.strerror or ""))
        print(
            f"error: a bug in orchestrate: {type(error).__name__}: {error}\n"
            "  try: the same with --debug, and report what it prints",
            file=sys.stderr,
        )
        return int(ExitStatus.BUG)


def _said(error: OrchestrateError) -> int:
    from orchestrator.render.errors import report

    report(error, sys.stderr)
    return int(error.status)


def _verb(argv: Sequence[str]) -> int:
    from orchestrator.cli.parser import parse

    try:
        arguments = parse(argv)
    except SystemExit as left:  # argparse has printed its help
        return int(left.code or 0)
    _keep_logging_off_the_terminal()
    return int(importlib.import_module(f"orchestrator.cli.{arguments.verb}").main(arguments))


def _flushed(status: int) -> int:
    """The status, once what was printed is out: here Ctrl-C still helps against a reader who waits."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
    return status


def _forget_stdout() -> None:
    """Nobody can read us; keep Python from complaining about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _keep_logging_off_the_terminal() -> None:
    """Warnings of ours and of libraries belong in a run's debug.log; here errors are said in our words."""
    import logging

    logging.lastResort = logging.NullHandler()


def _ours(argv: Sequence[str]) -> Sequence[str]:
    """The arguments before the user's command."""
    return argv[: list(argv).index("--")] if "--" in argv else argv
