"""`orchestrate launch`: plan, hand the run to a keeper, watch it."""

from __future__ import annotations

import argparse
import shlex
import sys
from functools import partial
from typing import Any

import msgspec

from orchestrator.cli.args import options
from orchestrator.cli.desk.interrupts import Interrupts
from orchestrator.cli.desk.out import facts, say, tell
from orchestrator.cli.desk.person import Person
from orchestrator.cli.desk.request import launch_request
from orchestrator.cli.desk.watch import follow
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.events import Stamped, encode
from orchestrator.planning.explain import dry_run
from orchestrator.requests import LaunchRequest
from orchestrator.text import utf8
from orchestrator.verbs.code import Sent
from orchestrator.verbs.inventory import named_hosts
from orchestrator.verbs.launch import launch, notify_command, prepare
from orchestrator.verbs.plan import wanted_tasks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.command(parser, "launch [options] [-- COMMAND ...]")
    options.chosen(parser)
    options.launching(parser)
    parser.add_argument(
        "--notify",
        metavar="CMD",
        help="a command of this machine to run when the run has ended, with the result as JSON on its stdin",
    )
    text = (
        "keep the run's figures in this file, as Prometheus has them, for node_exporter's textfile collector"
    )
    parser.add_argument("--metrics", metavar="FILE", help=text)
    text = "a run once more: its code, packages, data, command and options, on the hosts of today"
    parser.add_argument("--replay", metavar="RUN", help=text)
    parser.add_argument("--detach", action="store_true", help="start the run and return; `tail` shows it")
    parser.add_argument("--dry-run", action="store_true", help="print the whole plan, touch no host")
    parser.add_argument(
        "--other-ports", action="store_true", help="where another run holds the task ports, use other ones"
    )
    text = "this terminal is the task's, for pdb say, until it ends or you type Ctrl-]; nothing is restarted"
    parser.add_argument("--attach", type=options.task_id, metavar="worker/0", help=text)
    text = "with names in --hosts, ask nothing: accept new host keys, make an environment with TensorFlow"
    parser.add_argument("--yes", action="store_true", help=text)
    parser.add_argument(
        "--wait", action="store_true", help="stand in line until no other run uses any of the hosts"
    )


def main(arguments: argparse.Namespace) -> int:
    if arguments.detach and arguments.report is not None:
        what = "--report is for a launch that stays to the end, and --detach leaves"
        raise UsageError(what, hint="`orchestrate report RUN`, at any time")
    no_terminal = arguments.detach or arguments.json or not (sys.stdin.isatty() and sys.stdout.isatty())
    if arguments.attach is not None and no_terminal and not arguments.dry_run:
        what = "--attach needs a terminal to hand on: no --detach, no --json, no pipe"
        raise UsageError(what, hint="leave that out; over ssh: `ssh -t`")
    person = Person(yes=arguments.yes)
    request = launch_request(arguments, person)
    if arguments.dry_run:
        return _dry_run(request, person, as_json=arguments.json)
    if (words := named_hosts(arguments.hosts)) and not arguments.replay:
        from orchestrator.verbs.bare import surveyed  # noqa: PLC0415 - needed where there is no file of hosts

        request = surveyed(request, words, person, person.accepts, person.agrees)
    with Interrupts() as interrupts:
        folder = launch(request, person, partial(wanted_tasks, arguments.task, whose="the run"))
        if not arguments.detach or interrupts.count:
            return follow(folder, arguments, interrupts)
    if arguments.json:
        from orchestrator.phases.adopt import announcement  # noqa: PLC0415 - 80 ms that few launches need

        plan = folder.read_plan()  # its keeper may not have written the run's first event yet
        facts(encode(Stamped(plan.created, announcement(folder, plan))))
    else:
        say(folder.run)
    tell(f"started; orchestrate tail {folder.run} shows it")
    return ExitStatus.OK


def _dry_run(request: LaunchRequest, person: Person, *, as_json: bool) -> int:
    made = prepare(request, person, resolves=False)
    sent = Sent(made.code.root, made.code.read()) if made.code is not None else None
    told = notify_command(request.inventory.job, request.notify)
    if as_json:
        more: dict[str, Any] = {"code": sent.as_json()} if sent else {}
        more["findings"] = [one.as_json() for one in made.findings]
        facts(msgspec.json.encode(utf8({**msgspec.to_builtins(made.plan), **more})))
    else:
        say(*dry_run(made.plan).removesuffix("\n").split("\n"), *(sent.as_text() if sent else ()))
        say(*(("", f"at its end, here: {shlex.join(told)}") if told else ()))
    return ExitStatus.OK
