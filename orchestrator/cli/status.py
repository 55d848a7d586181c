"""`orchestrate status`: what the nodes say of a run's tasks, whoever keeps it."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from orchestrator.cli.args import options, readings
from orchestrator.cli.desk.out import facts, say, tell, width
from orchestrator.errors import ExitStatus

if TYPE_CHECKING:
    from orchestrator import wire
    from orchestrator.fleet import Fleet
    from orchestrator.model import RunPlan
    from orchestrator.run.view import View
    from orchestrator.run.vitals import Vitals
    from orchestrator.store import RunFolder

SUMMARY = "ask the nodes what a run's tasks are doing"
_FRESH = 1.5  # seconds that a keeper has to tell what the tasks do now
_LOOK = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    parser.add_argument(
        "--watch",
        nargs="?",
        const=2.0,
        type=readings.pause,
        metavar="S",
        help="look again every S seconds (default: 2), until the run is over",
    )
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    from orchestrator.cli.desk.asking import unconnected
    from orchestrator.cli.desk.finding import find_run

    folder = find_run(arguments.run, arguments.hosts)
    plan = folder.read_plan()
    with unconnected((*plan.hosts, *plan.retired)) as fleet:
        if arguments.watch is not None:
            return _watch(fleet, folder, plan, arguments)
        lines, known, _ = _look(fleet, folder, plan, json=arguments.json)
    (facts if arguments.json else say)(*lines)
    return int(ExitStatus.OK if known else ExitStatus.CLUSTER)


def _watch(fleet: Fleet, folder: RunFolder, plan: RunPlan, arguments: argparse.Namespace) -> int:
    """Look again and again, until the run is over or the user has seen enough."""
    from orchestrator.render import DisplayGoneError
    from orchestrator.render.sink import Redraw

    table = Redraw(sys.stdout)
    try:
        while True:
            lines, known, view = _look(fleet, folder, plan, json=arguments.json)
            if arguments.json:
                facts(*lines)
                sys.stdout.flush()
            else:
                table.show(lines)
            if view.ended or not known:
                return int(ExitStatus.OK if known else ExitStatus.CLUSTER)
            time.sleep(arguments.watch)
    except (BrokenPipeError, DisplayGoneError):  # `| head` has seen enough
        return int(ExitStatus.OK)
    except KeyboardInterrupt:
        tell(f"run {folder.run} continues; orchestrate stop {folder.run} ends it")
        return int(ExitStatus.INTERRUPTED)


def _look(fleet: Fleet, folder: RunFolder, plan: RunPlan, *, json: bool) -> tuple[list[str], bool, View]:
    """The lines of one look, whether any host answered, and how the run stands."""
    from orchestrator.cli.desk.history import history
    from orchestrator.model import Order
    from orchestrator.render.tables import status_table
    from orchestrator.run.view import replay
    from orchestrator.run.vitals import Vitals

    here = folder.has_keeper()
    asked = time.time()
    if here:
        folder.ask_keeper(Order.VITALS)
    states, unreachable, keeper = _ask(plan, fleet)
    view = replay(history(folder))
    if view.ended and any(host.job for host in plan.hosts):  # its nodes may be another job's by now
        unreachable = {}
    vitals = _vitals(folder, asked) if here and view.tasks and not view.ended else Vitals()
    lines = status_table(
        plan,
        view,
        states,
        unreachable,
        kept=here,
        keeper=keeper,
        json=json,
        vitals=vitals,
        now=time.time(),
        width=width(),
    )
    return lines, len(unreachable) < len(plan.hosts) + len(plan.retired), view


def _vitals(folder: RunFolder, since: float) -> Vitals:
    """Read what the keeper has written since it was asked; nothing where it does not follow tasks."""
    from orchestrator.run.vitals import Vitals, decode

    deadline = since + _FRESH
    while True:
        found = decode(folder.read_vitals())
        if found is not None and found.at >= since:
            return found
        if time.time() > deadline:
            return Vitals()
        time.sleep(_LOOK)


def _ask(
    plan: RunPlan, fleet: Fleet
) -> tuple[dict[tuple[str, str], tuple[str, wire.TaskStatus]], dict[str, str], str]:
    """Return the tasks' states by (attempt, task), why the other hosts gave none, and who keeps the run.

    Connections stay for the next look; those that were lost are made again.
    """
    from orchestrator import wire
    from orchestrator.planning.takeover import speaks_for

    for name in [name for name, session in fleet.sessions.items() if not session.alive]:
        del fleet.sessions[name]
    bad = fleet.connect([host for host in (*plan.hosts, *plan.retired) if host.name not in fleet.sessions])
    answers = fleet.ask(wire.States(run=plan.run))
    keepers = [run.keeper for reply in answers.good.values() for run in reply.runs if run.keeper]
    states = {
        (task.attempt, task.task): (name, task)
        for name, reply in answers.good.items()
        for task in reply.tasks
        if speaks_for(plan, name, task.attempt, task.task)
    }
    who = next((keeper.who or "" for keeper in keepers if keeper.alive), "")
    return states, {name: error.in_one_line for name, error in {**bad, **answers.bad}.items()}, who
