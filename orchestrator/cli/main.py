"""The entry point: dispatches to a verb's file and turns whatever happens into an exit status.

What is not needed to take a Ctrl-C is imported later: while this file is imported nobody would.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from orchestrator.errors import ExitStatus, HelpRequested, worded
from orchestrator.verbs import python


def run() -> NoReturn:
    """The console script: ends the process."""
    _open_streams()
    gc.set_threshold(50_000, 20, 20)  # what is imported stays: a tenth of the time was spent looking at it
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may stand on its line
        from orchestrator.cli.completion import answer

        answer()
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = main(sys.argv[1:])
    except KeyboardInterrupt:
        status = int(ExitStatus.INTERRUPTED)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more would take the status away
    for stream in (sys.stdout, sys.stderr):  # what is left, if anybody reads it
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if (programs := sys.modules.get("orchestrator.processes")) is not None:
        programs.end_all()
    # Not `sys.exit`: threads of connections may be at work still (daemons, for a host that hangs must not
    # keep us), and an interpreter that is taken down under them ends by SIGSEGV now and then (Python 3.11).
    os._exit(status)


def _open_streams() -> None:
    """Have 0, 1 and 2 open, whatever a cron job or `>&-` closed: else a file of ours gets their number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - for good


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit status; errors become text on stderr."""
    # Behind `--` it is the command's.
    debug = "--debug" in (argv[: list(argv).index("--")] if "--" in argv else argv)
    try:
        status = _verb(argv)
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()  # here Ctrl-C still helps against a reader who waits
        return status
    except KeyboardInterrupt:
        return int(ExitStatus.INTERRUPTED)
    except BrokenPipeError:  # nobody reads us any more, which `run` takes care of
        return int(ExitStatus.OK)
    except Exception as error:
        if debug:
            import traceback

            from orchestrator.cli.desk.out import tell

            tell(*traceback.format_exc().removesuffix("\n").split("\n"))
        from orchestrator.render.errors import report

        ours = worded(error)
        report(ours, sys.stderr)
        return int(ours.status)


def _verb(argv: Sequence[str]) -> int:
    if argv[:1] == ["launch"] and not {"-h", "--help", "--dry-run"}.intersection(argv):
        python.waiting.append(python.start())
    from orchestrator.cli.args.parser import parse, verb

    try:
        arguments = parse(argv)
    except SystemExit as left:  # argparse has printed its help
        return int(left.code or 0)
    import logging

    # Warnings of ours and of libraries belong in a run's debug.log; here errors are said in our words.
    logging.lastResort = logging.NullHandler()
    try:
        return int(verb(arguments.verb).main(arguments))
    except HelpRequested as asked:
        from orchestrator.cli.desk.out import say

        say(*asked.text.removesuffix("\n").split("\n"))
        return ExitStatus.OK
