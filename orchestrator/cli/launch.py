"""`orchestrate launch`: plan a run, hand it to a keeper, watch it."""

import argparse
import os
import shlex
import sys
from typing import Any

import msgspec

from orchestrator.cli.args import options
from orchestrator.cli.desk.out import facts, say, tell
from orchestrator.cli.desk.person import Person, request_of
from orchestrator.cli.desk.watch import Interrupts, follow
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.events import Stamped, encode
from orchestrator.model import Terminal
from orchestrator.planning.explain import dry_run
from orchestrator.requests import LaunchRequest
from orchestrator.text import json_of
from orchestrator.verbs.code import Sent
from orchestrator.verbs.inventory import SLURM, named_hosts
from orchestrator.verbs.launch import launch, notify_command, prepare


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.command(parser, "launch [options] [-- COMMAND ...]")
    options.chosen(parser)
    options.launching(parser)
    text = "a command to run on this machine when the run has ended, with the result as JSON on its stdin"
    parser.add_argument("--notify", metavar="CMD", help=text)
    text = "repeat a run: its code, packages, data, command, and options, on the current hosts"
    parser.add_argument("--replay", metavar="RUN", help=text)
    text = "start in the working folders of an ended run, with its checkpoints and the current code"
    parser.add_argument("--continue", metavar="RUN", dest="continues", help=text)
    options.flag(parser, "--detach", "start the run and return; `tail` shows it")
    options.flag(parser, "--dry-run", "print the plan, without contacting a host")
    options.flag(parser, "--other-ports", "use other task ports if another run holds them")
    text = "connect this terminal to a task, for example for pdb, until it ends or you press Ctrl-]"
    parser.add_argument("--attach", type=options.task_id, metavar="worker/0", help=text)
    text = "with names in --hosts: do not prompt; accept new host keys, and create a missing environment"
    options.flag(parser, "--yes", text)
    options.flag(parser, "--wait", "wait in the queue until no other run uses any of the hosts")


def main(arguments: argparse.Namespace) -> int:
    no_terminal = arguments.detach or arguments.json or not (sys.stdin.isatty() and sys.stdout.isatty())
    if arguments.attach is not None and no_terminal and not arguments.dry_run:
        what = "--attach needs a terminal: no --detach, no --json, no pipe"
        raise UsageError(what, hint="omit that option; over SSH, log in with `ssh -t`")
    person, terminal = Person(yes=arguments.yes), None
    if arguments.attach is not None and not arguments.dry_run:
        size, kind = os.get_terminal_size(), os.environ.get("TERM", "xterm")
        terminal = Terminal(arguments.attach, size.lines, size.columns, kind)
    other_ports = arguments.other_ports or arguments.hosts == SLURM  # the ports there are defaults
    request = request_of(LaunchRequest, arguments, person, terminal=terminal, other_ports=other_ports)
    if arguments.dry_run:
        return _dry_run(request, person, as_json=arguments.json)
    if (words := named_hosts(arguments.hosts)) and not arguments.replay:
        from orchestrator.verbs.init import surveyed  # noqa: PLC0415 - needed where there is no file of hosts

        request = surveyed(request, words, person, person.accepts, person.agrees)
    with Interrupts() as interrupts:
        folder = launch(request, person, arguments.task, awaited=arguments.detach)
        if not arguments.detach or interrupts.count:
            return follow(folder, arguments, interrupts)
    if arguments.json:
        from orchestrator.phases.adopt import announcement  # noqa: PLC0415 - 80 ms that few launches need

        plan = folder.read_plan()  # its keeper may not have written the first event yet
        facts(encode(Stamped(plan.created, announcement(folder, plan))))
    else:
        say(folder.run)
    tell(f"started; orchestrate tail {folder.run} shows it")
    return ExitStatus.OK


def _dry_run(request: LaunchRequest, person: Person, *, as_json: bool) -> int:
    made = prepare(request, person, resolves=False)
    sent = Sent(made.code.root, made.code.read()) if made.code is not None else None
    notification = notify_command(request.inventory.job, request.notify)
    if as_json:
        more: dict[str, Any] = {"code": sent.as_json()} if sent else {}
        more["findings"] = [finding.as_json() for finding in made.findings]
        facts(json_of({**msgspec.to_builtins(made.plan), **more}))
    else:
        say(*dry_run(made.plan), *(sent.as_text() if sent else ()))
        say(*(("", f"after the run, on this machine: {shlex.join(notification)}") if notification else ()))
    return ExitStatus.OK
