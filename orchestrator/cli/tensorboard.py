"""`orchestrate tensorboard`: what a run's tasks write for TensorBoard, live in a local browser."""

import argparse
import json
import signal
import sys

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import facts, say, tell
from orchestrator.cli.desk.person import Person
from orchestrator.errors import ExitStatus
from orchestrator.requests import TensorboardRequest, make
from orchestrator.verbs.finding import find_run
from orchestrator.verbs.tensorboard import follow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    text = "show only this task's host, or this host (default: all)"
    parser.add_argument("--from", dest="source", metavar="worker/0", help=text)
    text = "the folder with the logs (default: the run's work folder)"
    parser.add_argument("--logdir", metavar="DIR", help=text)
    text = "the port on this machine (default: a free one)"
    parser.add_argument("--port", type=options.whole(1, 65_535), metavar="PORT", help=text)
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    person = Person()
    folder = find_run(arguments.run, arguments.hosts, person)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)

    def show(url: str, files: int) -> None:
        if arguments.json:
            facts(json.dumps({"run": folder.run, "url": url, "files": files}))
        else:
            say(url)
        sys.stdout.flush()
        tell(f"event files so far: {files}; new ones are shown as they appear, until Ctrl-C")

    try:
        follow(folder, make(TensorboardRequest, vars(arguments)), person, show)
    except KeyboardInterrupt:
        tell("TensorBoard has ended; nothing is left on the hosts")
    return ExitStatus.OK
