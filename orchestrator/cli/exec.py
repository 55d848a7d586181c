"""`orchestrate exec`: one command on all hosts, without a run; equal answers are shown once."""

from __future__ import annotations

import argparse
import sys
import time

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import facts, say, tell
from orchestrator.cli.desk.person import Person
from orchestrator.cli.desk.request import request_of
from orchestrator.errors import ExitStatus, SeveralErrors
from orchestrator.phases.command import Commands
from orchestrator.render.commands import CommandAnswers, StreamLines
from orchestrator.render.errors import report
from orchestrator.requests import ExecRequest
from orchestrator.text import count
from orchestrator.verbs.exec import prepare
from orchestrator.wire import Pipe

_OFTEN = 0.5  # seconds between looks at what may be shown
_ENDING = 15.0  # seconds until a host that says nothing of its command's end is given up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.command(parser, "exec [--only HOSTS] [--exclude HOSTS] [--json] -- COMMAND ...")
    options.chosen(parser)
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    person = Person()
    commands = prepare(request_of(ExecRequest, arguments, person), person)
    answers = CommandAnswers([host.name for host in commands.hosts], as_json=arguments.json)
    try:
        commands.start()
        look = 0.0
        while answers.waiting:
            word, now = commands.next(_OFTEN), time.monotonic()
            if word is not None:
                _show(answers.take(word, now), as_json=arguments.json)
            if now >= look:
                look = now + _OFTEN
                _show(answers.due(now), as_json=arguments.json)
    except KeyboardInterrupt:
        _end(commands, answers, as_json=arguments.json)
        return ExitStatus.INTERRUPTED
    finally:
        commands.close()
    _show(answers.rest(), as_json=arguments.json)
    if answers.errors and not arguments.json:
        report(SeveralErrors(answers.errors), sys.stderr)
    return answers.status


def _show(lines: StreamLines, *, as_json: bool) -> None:
    (facts if as_json else say)(*(line for pipe, line in lines if pipe is Pipe.OUT))
    sys.stdout.flush()
    tell(*(line for pipe, line in lines if pipe is Pipe.ERR))


def _end(commands: Commands, answers: CommandAnswers, *, as_json: bool) -> None:
    """End the command everywhere and say so; one more Ctrl-C leaves at once."""
    tell(f"ending the command on {count(len(answers.running), 'host')} (Ctrl-C again: leave)")
    answers.waiting &= answers.running.keys()  # where it has not started there is nothing to be awaited
    commands.stop()
    deadline = time.monotonic() + _ENDING
    while answers.waiting and time.monotonic() < deadline:
        if (word := commands.next(_OFTEN)) is not None:
            _show(answers.take(word, time.monotonic()), as_json=as_json)
    _show(answers.rest(), as_json=as_json)
    for name in sorted(answers.waiting):
        tell(f"warning: {name} did not say that its command has ended")
    if not answers.waiting:
        tell("nothing of it is left")
