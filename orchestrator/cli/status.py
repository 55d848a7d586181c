"""`orchestrate status`: what the nodes say of a run's tasks, whoever keeps it."""

from __future__ import annotations

import argparse
import time
from functools import cache

from orchestrator import wire
from orchestrator.cli.args import options
from orchestrator.cli.desk import inventory as inventories
from orchestrator.cli.desk.asking import asking, unconnected
from orchestrator.cli.desk.finding import find_run, view_of
from orchestrator.cli.desk.out import facts, say, width
from orchestrator.errors import ExitStatus, UsageError
from orchestrator.fleet import Fleet
from orchestrator.model import Order, RunPlan
from orchestrator.planning.takeover import speaks_for
from orchestrator.render.tables import MachineRow, machine_rows, machines_table, status_table
from orchestrator.run.view import View
from orchestrator.run.vitals import Vitals, decode
from orchestrator.store import RunFolder, runs

_FRESH = 1.5  # seconds that a keeper has to tell what the tasks do now
_LOOK = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.run(parser)
    parser.add_argument("--machines", action="store_true", help="show who uses each host of the inventory")
    options.as_json(parser)


def main(arguments: argparse.Namespace) -> int:
    if arguments.machines:
        return _machines(arguments)
    folder = find_run(arguments.run, arguments.hosts)
    plan = folder.read_plan()
    here = folder.has_keeper()
    with unconnected((*plan.hosts, *plan.retired)) as fleet:
        asked = time.time()
        if here:
            folder.ask_keeper(Order.VITALS)
        states, unreachable, keeper = _ask(plan, fleet)
    view = view_of(folder)
    if view.ended and (not view.ended.unproven or any(host.job for host in plan.hosts)):
        unreachable = {}  # its end was seen; its machines may be others' by now
    vitals = _vitals(folder, asked) if here and view.tasks and not view.ended else Vitals()
    lines = status_table(
        plan,
        view,
        states,
        unreachable,
        kept=here,
        keeper=keeper,
        json=arguments.json,
        vitals=vitals,
        now=time.time(),
        width=width(),
    )
    (facts if arguments.json else say)(*lines)
    known = len(unreachable) < len(plan.hosts) + len(plan.retired)
    return ExitStatus.OK if known else ExitStatus.CLUSTER


def _machines(arguments: argparse.Namespace) -> int:
    if arguments.run:
        raise UsageError("status --machines takes no run", hint="leave it out: all runs are shown")
    hosts = inventories.load(arguments.hosts).hosts
    folders = {str(folder.run): folder for folder in runs()}
    with asking(hosts) as (fleet, bad):
        asked = time.time()
        kept = {run for run, folder in folders.items() if folder.ask_keeper(Order.VITALS)}
        gather, looks = fleet.begin(wire.States(run=None)), fleet.ask(wire.Gpus(others=True))
        states = gather()
        ahead = {name: session.clock_offset for name, session in fleet.sessions.items()}

    @cache
    def progress(run: str) -> tuple[View, Vitals]:
        if run not in folders:
            return View(), Vitals()
        view = view_of(folders[run], quiet=True)
        return view, _vitals(folders[run], asked) if run in kept else Vitals()

    errors = {name: error.in_one_line for name, error in {**looks.bad, **states.bad, **bad}.items()}
    rows: list[MachineRow] = []
    for name in (host.name for host in hosts):
        if name in errors:
            rows.append(MachineRow(name, said=errors[name]))
        else:
            rows += machine_rows(name, states.good[name], looks.good[name], progress, ahead.get(name, 0.0))
    lines = machines_table(rows, json=arguments.json, now=time.time(), width=width())
    (facts if arguments.json else say)(*lines)
    return ExitStatus.CLUSTER if len(errors) == len(hosts) else ExitStatus.OK


def _vitals(folder: RunFolder, since: float) -> Vitals:
    """Read what the keeper has written since it was asked; nothing where it does not follow tasks."""
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
    """Return the tasks' states by (attempt, task), why the other hosts gave none, and who keeps the run."""
    bad = fleet.connect((*plan.hosts, *plan.retired))
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
