"""`orchestrate report`: a run as one page of HTML, or several in the same charts."""

import argparse
import signal
import sys
from functools import partial
from pathlib import Path

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import say, tell
from orchestrator.cli.desk.person import Person
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.report import several
from orchestrator.store import RunFolder
from orchestrator.verbs.finding import find_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "id, part of it, name, or 'lr-*' (default: the newest run); several runs share the charts"
    parser.add_argument("run", nargs="*", metavar="RUN", help=text)
    options.hosts(parser)
    text = "where to write it (default: a file in the run's folder, whose path is printed)"
    parser.add_argument("-o", "--output", type=options.output, metavar="FILE", help=text)
    text = "serve the page to browsers on this machine, and update it, until Ctrl-C"
    parser.add_argument("-f", "--follow", action="store_true", help=text)
    text = "with --follow: the port on 127.0.0.1 (default: a free one)"
    parser.add_argument("--port", type=options.whole(1, 65_535), metavar="PORT", help=text)


def main(arguments: argparse.Namespace) -> int:
    if arguments.follow and arguments.output:
        raise UsageError("--follow serves the page, --output writes it to a file", hint="omit one of them")
    if arguments.port and not arguments.follow:
        raise UsageError("--port needs --follow", hint="add --follow, or omit --port")
    folders = find_runs(arguments.run, arguments.hosts, Person())
    if arguments.follow:
        return _follow(folders, arguments.port or 0)
    say(str(several.write(folders, Path(arguments.output) if arguments.output else None)))
    return ExitStatus.OK


def _follow(folders: list[RunFolder], port: int) -> int:
    from orchestrator.report.live import PageServer, script  # noqa: PLC0415 - a server that few pages need

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with PageServer(partial(several.page_of, folders, live=script()), port) as server:
        try:
            server.page()  # a run that cannot be read is an error here
            say(server.url)
            sys.stdout.flush()
            tell("the page is updated during the run; Ctrl-C ends this server")
            server.serve_forever()
        except KeyboardInterrupt:
            tell("the page is no longer served")
    return ExitStatus.OK
