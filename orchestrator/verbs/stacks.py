"""`stacks`: the current stacks of a run's tasks, whichever machine has its keeper."""

from orchestrator import wire
from orchestrator.clock import SYSTEM
from orchestrator.errors import SeveralErrors, UsageError
from orchestrator.fleet.containers import Inside
from orchestrator.phases.hang import RunStacks, keep
from orchestrator.run.stacks import living
from orchestrator.store import RunFolder
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import asking
from orchestrator.verbs.finding import view_of

_SECONDS = 45.0


def take(folder: RunFolder, caller: Caller) -> RunStacks:
    """Collect the stacks of a run's tasks; raise UsageError if none is alive."""
    plan = folder.read_plan()
    view, _ = view_of(folder, caller)
    # Through separate connections: the run's keeper may be on another machine, or gone.
    with asking(plan.hosts, caller, Inside(plan.run, start=False)) as (fleet, unreached):
        answers = fleet.ask(wire.Stacks(run=plan.run), timeout=_SECONDS)
    good, bad = answers.good, unreached | answers.bad
    if not good:
        raise SeveralErrors(bad.values())
    missing = {name: error.in_one_line for name, error in bad.items()}
    if not any(living(task) for reply in good.values() for task in reply.tasks):
        but = f"; {', '.join(missing)} could not be reached" if missing else ""
        raise UsageError(
            f"no task of run {plan.run} is alive",
            why=f"the nodes report none{but}",
            hint=f"`orchestrate status {plan.run}` shows how they ended",
        )
    steps = {task.task: task.step for task in view.tasks.values()}
    return keep(folder, plan, good, missing, steps, hang=False, at=SYSTEM.wall())
