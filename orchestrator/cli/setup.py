"""`orchestrate setup`: create the [env] environment, or fetch the container image, on every host."""

import argparse

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import bars, say
from orchestrator.cli.desk.person import Person, request_of
from orchestrator.errors import ExitStatus, SeveralErrors
from orchestrator.requests import SetupRequest
from orchestrator.text import count
from orchestrator.verbs.setup import setup


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.chosen(parser)
    options.flag(parser, "--upgrade", "resolve the packages again, to the newest matching versions")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    person = Person()
    request = request_of(SetupRequest, arguments, person)
    contained = [host for host in request.inventory.hosts if host.container]
    if request.inventory.environment is None and not contained:
        if not arguments.json:
            source = request.inventory.source
            say(f"nothing to do: {source} has no [env], so its hosts use your own Python environments")
        return ExitStatus.OK
    with bars(json=arguments.json) as emit:
        made = setup(request, emit, person)
    if made.failed:
        raise SeveralErrors(made.failed.values())
    if not arguments.json:
        apart = f"; {', '.join(made.own)} with their own `python`" if made.own else ""
        if contained:
            say(f"{count(len(contained), 'host')} ready with the image of `container`")
        if made.name:
            say(f"{count(len(made.hosts), 'host')} ready with the environment {made.name}{apart}")
    return ExitStatus.OK
