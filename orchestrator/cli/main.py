"""The entry point: calls a verb's file and turns any outcome into an exit status.

What is not needed to handle a Ctrl-C is imported later: during this file's import nothing would handle it.
"""

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
    gc.set_threshold(50_000, 20, 20)  # imported modules stay: looking at them took a tenth of the time
    sys.setswitchinterval(0.05)  # as in a keeper, for the threads of many hosts
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        from orchestrator.cli.completion import answer

        answer()
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = main(sys.argv[1:])
    except KeyboardInterrupt:
        status = int(ExitStatus.INTERRUPTED)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # another one would change the status
    for stream in (sys.stdout, sys.stderr):  # the remaining output, if it has a reader
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if (programs := sys.modules.get("orchestrator.processes")) is not None:
        programs.end_all()
    # Not `sys.exit`: threads of connections may still be working (as daemons, because a hanging host must not
    # delay the exit), and Python 3.11 sometimes dies of SIGSEGV when it shuts down under them.
    os._exit(status)


def _open_streams() -> None:
    """Open 0, 1 and 2 if a cron job or `>&-` closed them: our files must not get these numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - for good


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit status; errors become text on stderr."""
    # After `--` it belongs to the command.
    debug = "--debug" in (argv[: list(argv).index("--")] if "--" in argv else argv)
    try:
        _open_streams()
        status = _verb(argv)
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()  # here Ctrl-C still works against a reader that blocks
        return status
    except KeyboardInterrupt:
        return int(ExitStatus.INTERRUPTED)
    except BrokenPipeError:  # our output has no reader any more, which `run` handles
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

    from orchestrator.processes import allow_files

    allow_files()  # for connections, and for the logs of many tasks
    # Warnings of ours and of libraries belong in a run's debug.log; here errors have their own format.
    logging.lastResort = logging.NullHandler()
    try:
        return int(verb(arguments.verb).main(arguments))
    except HelpRequested as asked:
        from orchestrator.cli.desk.out import say

        say(*asked.text.removesuffix("\n").split("\n"))
        return ExitStatus.OK
