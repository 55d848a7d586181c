"""`orchestrate exec`: one command on all hosts, without a run; equal answers are shown once."""

import argparse
import math
import sys
import time

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import facts, say, tell
from orchestrator.cli.desk.person import Person, request_of
from orchestrator.errors import ExitStatus, SeveralErrors
from orchestrator.render.commands import CommandAnswers, StreamLines
from orchestrator.render.errors import report
from orchestrator.render.fold import names
from orchestrator.requests import ExecRequest
from orchestrator.text import count
from orchestrator.verbs.exec import Commands, prepare
from orchestrator.wire import Pipe

_OFTEN = 0.5  # seconds between two checks of what can be shown
_PATIENCE = 2.0  # seconds until hosts that are still awaited are named
_ENDING = 5.0  # seconds until a host that does not report its command's end is given up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.command(parser, "exec [--only HOSTS] [--exclude HOSTS] [--outside] [--json] -- COMMAND ...")
    options.chosen(parser)
    options.flag(parser, "--outside", "on hosts with `container`: run it on the machine")
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
    """End the command everywhere and report it; another Ctrl-C leaves at once."""
    tell(f"ending the command on {count(len(answers.running), 'host')} (Ctrl-C again: leave)")
    answers.waiting &= answers.running.keys()  # nothing to wait for where it has not started
    commands.stop()
    deadline, patience = time.monotonic() + _ENDING, time.monotonic() + _PATIENCE
    while answers.waiting and time.monotonic() < deadline:
        if (word := commands.next(_OFTEN)) is not None:
            _show(answers.take(word, time.monotonic()), as_json=as_json)
        if answers.waiting and time.monotonic() > patience:
            patience = math.inf
            tell(f"waiting for {names(answers.waiting)}, up to {_ENDING:.0f} s")
    _show(answers.rest(), as_json=as_json)
    for name in sorted(answers.waiting):
        tell(f"warning: {name} did not report the end of its command")
    if not answers.waiting:
        tell("none of its processes is left")
