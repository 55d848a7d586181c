"""`orchestrate setup`: make the environment of [env] on every host that lacks it."""

from __future__ import annotations

import argparse

from orchestrator.cli.args import options
from orchestrator.cli.desk.asking import asking
from orchestrator.cli.desk.inventory import chosen
from orchestrator.cli.desk.out import bars, say
from orchestrator.errors import ExitStatus, SeveralErrors
from orchestrator.events import Stepped
from orchestrator.launching.environment import with_environment
from orchestrator.phases.setup import make_environments, runs_in
from orchestrator.text import count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.chosen(parser)
    parser.add_argument(
        "--upgrade", action="store_true", help="resolve the packages again, to the newest that fit"
    )
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    inventory = chosen(arguments)
    if inventory.environment is None:
        if not arguments.json:
            say(f"nothing to do: {inventory.source} has no [env], so its hosts use Pythons of your own")
        return ExitStatus.OK
    with bars(json=arguments.json) as emit:
        for host in inventory.hosts:
            emit(Stepped(host.name, "resolve"))
        inventory, plan, lock = with_environment(inventory, renew=arguments.upgrade)
    own = [host.name for host in inventory.hosts if not runs_in(host, plan)]
    trainers = [host for host in inventory.hosts if host.name not in own]
    with asking(trainers) as (fleet, bad):
        connected = [host for host in trainers if host.name in fleet.sessions and host.name not in bad]
        with bars(json=arguments.json) as emit:
            bad.update(make_environments(fleet, connected, plan, lock, emit))
    if bad:
        raise SeveralErrors(bad.values())
    if not arguments.json:
        apart = f"; {', '.join(own)}: a `python` of your own" if own else ""
        say(f"{count(len(trainers), 'host')} ready with the environment {plan.name}{apart}")
    return ExitStatus.OK
