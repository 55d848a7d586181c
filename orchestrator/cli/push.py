"""`orchestrate push`: bring the data of [data], or a folder or file, to every host that lacks it."""

import argparse

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import bars, say
from orchestrator.cli.desk.person import Person, request_of
from orchestrator.errors import ExitStatus, SeveralErrors
from orchestrator.requests import PushRequest
from orchestrator.text import count, size
from orchestrator.verbs.push import Pushed, push


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a folder or file on this machine (default: everything in [data])"
    parser.add_argument("paths", nargs="*", metavar="PATH", help=text)
    options.chosen(parser)
    text = "limit what this machine sends, in bytes per second: 20M (default: no limit)"
    parser.add_argument("--limit", type=options.rate, metavar="RATE", help=text)
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    person = Person()
    request = request_of(PushRequest, arguments, person)
    with bars(json=arguments.json) as emit:
        pushed = push(request, emit, person)
    if not arguments.json:
        say(*_lines(pushed))
    if pushed.failed:
        raise SeveralErrors(pushed.failed.values())
    return ExitStatus.OK


def _lines(pushed: Pushed) -> list[str]:
    if pushed.dataset is None or not pushed.placed:
        return []
    name = next(iter(pushed.placed))
    where = f"  (on {name})" if len(set(pushed.placed.values())) > 1 else ""
    amount = f"{size(pushed.dataset.size)} in {count(pushed.dataset.files, 'file')}"
    shown = [f"  {variable}={value}{where}" for variable, value in pushed.variables(name).items()]
    return [f"{count(len(pushed.placed), 'host')} with data {pushed.dataset.digest}: {amount}", *shown]
