"""`orchestrate exec`: one command on all hosts, without a run; equal answers are shown once."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import tell
from orchestrator.errors import ExitStatus, SeveralErrors, UsageError
from orchestrator.text import count

if TYPE_CHECKING:
    from orchestrator.cli.desk.answers import ShownAnswers
    from orchestrator.model import Host
    from orchestrator.phases.command import Commands

SUMMARY = "run one command on all hosts, and show what they answer: equal answers once"
_OFTEN = 0.5  # seconds between looks at what may be shown
_ENDING = 15.0  # seconds until a host that says nothing of its command's end is given up
_OF_A_SHELL = frozenset({"cd", "source", ".", "export", "module", "ulimit", "alias", "eval", "exec"})
_FOR_A_SHELL = re.compile(r"[\s|&;<>$`*]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.command(parser, "exec [--only HOSTS] [--exclude HOSTS] [--json] -- COMMAND ...")
    options.chosen(parser)
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    from orchestrator.cli.desk.answers import ShownAnswers
    from orchestrator.cli.desk.asking import logins
    from orchestrator.cli.desk.inventory import load
    from orchestrator.cli.desk.retyped import keep_words
    from orchestrator.connectors import connectors
    from orchestrator.phases.command import Commands
    from orchestrator.planning.selection import narrow
    from orchestrator.render.errors import report

    try:
        argv = _argv(arguments.command)
    except UsageError as error:
        raise keep_words(error, "exec", arguments.ours) from None
    inventory = load(arguments.hosts)
    hosts = _machines(narrow(inventory, arguments.only, arguments.exclude).hosts)
    commands = Commands(connectors(logins(hosts)), hosts, argv)
    answers = ShownAnswers([host.name for host in hosts], as_json=arguments.json)
    try:
        commands.start()
        while answers.waiting:
            answers.take(commands.next(_OFTEN))
    except KeyboardInterrupt:
        return _interrupted(commands, answers)
    finally:
        commands.close()
    answers.show_ended()
    if answers.errors and not arguments.json:
        report(SeveralErrors(answers.errors), sys.stderr)
    return answers.status


def _argv(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command, which no shell reads; raise UsageError for one that was meant for a shell."""
    if not command:
        raise UsageError("exec needs a command", hint="`orchestrate exec -- uptime`")
    if command[0] in _OF_A_SHELL or command[0].startswith("~"):
        raise UsageError(
            f"{command[0]} is for a shell, and none reads the command",
            why="the words after -- are run as they are, like the words of a task's command",
            hint=f"`orchestrate exec -- sh -c {shlex.quote(' '.join(map(_quoted, command)))}`",
        )
    if len(command) == 1 and _FOR_A_SHELL.search(command[0]):
        raise UsageError(
            f"{shlex.quote(command[0])} is one word, and no shell reads it",
            why="the words after -- are run as they are, like the words of a task's command",
            hint=f"`orchestrate exec -- sh -c {shlex.quote(command[0])}`",
        )
    return command


def _quoted(word: str) -> str:
    """As a shell has to read it; ~ at the beginning stays its own."""
    home, slash, rest = word.partition("/")
    return home + slash + shlex.quote(rest) if word.startswith("~/") and rest else shlex.quote(word)


def _machines(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Each way to log in once: a machine may have several entries."""
    ways = {(host.ssh, host.user, host.port): host for host in reversed(tuple(hosts))}
    return tuple(reversed(ways.values()))


def _interrupted(commands: Commands, answers: ShownAnswers) -> int:
    """End the command everywhere and say so; a second Ctrl-C leaves at once."""
    running = [name for name in answers.waiting if name in answers.running]
    tell(f"ending the command on {count(len(running), 'host')} (Ctrl-C again: leave)")
    answers.waiting &= set(running)  # where it has not started there is nothing to be awaited
    commands.stop()
    deadline = time.monotonic() + _ENDING
    try:
        while answers.waiting and time.monotonic() < deadline:
            answers.take(commands.next(_OFTEN))
    except KeyboardInterrupt:
        pass
    answers.show_ended()
    for name in sorted(answers.waiting):
        tell(f"warning: {name} did not say that its command has ended")
    if not answers.waiting:
        tell("nothing of it is left")
    return int(ExitStatus.INTERRUPTED)
