"""`status`: the state of a run's tasks, whichever machine has its keeper, and who uses the machines."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeAlias

from orchestrator import wire
from orchestrator.fleet import Fleet
from orchestrator.model import Host, Order, RunPlan
from orchestrator.planning.takeover import speaks_for
from orchestrator.run.view import View, Vitals
from orchestrator.store import RunFolder, runs
from orchestrator.value import Value
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import asking, unconnected
from orchestrator.verbs.finding import view_of

_FRESH = 1.5  # seconds for a keeper to report what the tasks are doing
_LOOK = 0.05
States: TypeAlias = Mapping[tuple[str, str], tuple[str, wire.TaskStatus]]  # (attempt, task) -> host and state


class StatusReport(Value):
    """A run according to its nodes and this machine."""

    plan: RunPlan
    view: View
    states: States
    unreachable: Mapping[str, str]  # host -> why it did not reply
    kept: bool  # it has a keeper on this machine
    keeper: str = ""  # its keeper, as nodes report
    vitals: Vitals = Vitals()  # current values from a keeper on this machine

    @property
    def answered(self) -> bool:
        """Return True if at least one host replied, or none was needed."""
        return len(self.unreachable) < len(self.plan.hosts) + len(self.plan.retired)


class Machines(Value):
    """Users of the hosts of an inventory."""

    states: Mapping[str, wire.Runs]  # by host
    gpus: Mapping[str, wire.GpuLook]
    errors: Mapping[str, str]  # host -> why it did not reply
    ahead: Mapping[str, float]  # host -> seconds that its clock is ahead of ours
    progress: Callable[[str], tuple[View, Vitals]]  # of a run, as far as this machine knows it


def survey_run(folder: RunFolder, caller: Caller) -> StatusReport:
    """Ask the nodes of a run, and its keeper, for the state of its tasks."""
    plan, here = folder.read_plan(), folder.has_keeper()
    with unconnected((*plan.hosts, *plan.retired), caller) as fleet:
        since = time.time()
        if here:
            folder.ask_keeper(Order.VITALS)
        states, unreachable, keeper = _ask(plan, fleet)
    view, _ = view_of(folder, caller)
    if view.ended and (not view.ended.unproven or any(host.job for host in plan.hosts)):
        unreachable = {}  # its end was observed; its machines may be in use by others now
    vitals = _vitals(folder, since) if here and view.tasks and not view.ended else Vitals()
    return StatusReport(plan, view, states, unreachable, here, keeper, vitals)


def survey_machines(hosts: Sequence[Host], caller: Caller) -> Machines:
    """Ask hosts for the runs, and the processes on GPUs, that use them."""
    folders = {str(folder.run): folder for folder in runs()}
    with asking(hosts, caller) as (fleet, bad):
        since = time.time()
        kept = {run for run, folder in folders.items() if folder.ask_keeper(Order.VITALS)}
        gather, looks = fleet.begin(wire.States(run=None)), fleet.ask(wire.Gpus(others=True))
        states = gather()
        ahead = {name: session.clock_offset for name, session in fleet.sessions.items()}

    @cache
    def progress(run: str) -> tuple[View, Vitals]:
        if run not in folders:
            return View(), Vitals()
        view, _ = view_of(folders[run], Caller())
        return view, _vitals(folders[run], since) if run in kept else Vitals()

    errors = {name: error.in_one_line for name, error in {**looks.bad, **states.bad, **bad}.items()}
    return Machines(states.good, looks.good, errors, ahead, progress)


def _vitals(folder: RunFolder, since: float) -> Vitals:
    """Read what the keeper has written since the request; nothing if it does not follow tasks."""
    deadline = since + _FRESH
    while True:
        vitals = folder.read_vitals()
        if vitals is not None and vitals.at >= since:
            return vitals
        if time.time() > deadline:
            return Vitals()
        time.sleep(_LOOK)


def _ask(plan: RunPlan, fleet: Fleet) -> tuple[States, dict[str, str], str]:
    """Return the tasks' states by (attempt, task), the errors of the other hosts, and the run's keeper."""
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
    return states, {name: error.in_one_line for name, error in (bad | answers.bad).items()}, who
