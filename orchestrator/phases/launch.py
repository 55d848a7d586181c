"""Starting all tasks: a barrier before, and all or none after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator import wire
from orchestrator.errors import HostError, Trouble
from orchestrator.events import Phase, TaskStarted
from orchestrator.fleet import Cancelled
from orchestrator.frameworks import FRAMEWORKS
from orchestrator.model import Completion, Role, RunPlan, TaskId, TaskSpec
from orchestrator.names import is_validation
from orchestrator.phases.connect import lease, plan_text
from orchestrator.phases.context import PhaseFailed, Run, fail_on, phase
from orchestrator.phases.follow import LOG_CAP
from orchestrator.phases.restart import recovery
from orchestrator.run import restarts

START_TIMEOUT = 60.0


def start(run: Run, attempt: str, specs: Sequence[TaskSpec], cwd: Mapping[str, str]) -> dict[str, HostError]:
    """Ask every node to start its tasks, all at once; return what went wrong by host.

    A host that is lost over it is asked once more when it is back: to start a task twice starts it once.
    """
    told: set[TaskId] = set()  # of a host with several tasks some may have answered
    bad = _start(run, attempt, specs, cwd, told)
    if any(error.lost for error in bad.values()):
        recovery.gather(run, run.timings.host_return)
        if run.stop.asked:
            raise Cancelled
        back = {name for name, error in bad.items() if error.lost and name in run.fleet.sessions}
        lease(run, Phase.LAUNCH, move=False)  # the gone agents held theirs; the other tasks know these ports
        again = _start(run, attempt, [spec for spec in specs if spec.host in back], cwd, told)
        bad = {**{name: error for name, error in bad.items() if name not in back}, **again}
    return bad


def _start(
    run: Run, attempt: str, specs: Sequence[TaskSpec], cwd: Mapping[str, str], told: set[TaskId]
) -> dict[str, HostError]:
    """Ask once; `told` are tasks whose start was told."""
    if run.plan.hearsay:
        raise PhaseFailed(Phase.LAUNCH, f"nothing of this run is started from here: {run.plan.hearsay}")
    plan = plan_text(run)
    futures = []
    for spec in specs:
        session = run.fleet.sessions[spec.host]
        terminal = run.plan.terminal
        if terminal and (terminal.task != spec.id or is_validation(attempt)):
            terminal = None
        kind = {"TERM": terminal.kind} if terminal else {}
        in_job = bool(run.plan.host(spec.host).job)  # no task may outlive it, and its keeper is part of it
        started = wire.Spec(
            argv=spec.argv,
            env={**run.placed.env.get(spec.host, {}), **kind, **spec.env, **run.secrets},
            cwd=cwd[spec.host],
            setup=spec.setup,
            python=run.plan.host(spec.host).python,
            grace=run.plan.grace,
            port=spec.port,
            endless=in_job or endless(run.plan, spec),
            lifeline=run.timings.least_fence if in_job else run.plan.lifeline,
            fence=restarts.fence(run.plan, run.timings.least_fence) if not is_validation(attempt) else None,
            stacks=run.plan.stacks,
            log_cap=LOG_CAP,
            address=run.plan.host(spec.host).address,
            interfaces=FRAMEWORKS[run.plan.recipe.framework].interfaces,
            terminal=(terminal.rows, terminal.columns) if terminal else None,
        )
        request = wire.Start(run=run.id, attempt=attempt, task=str(spec.id), plan=plan, spec=started)
        futures.append((spec, session, session.submit(request)))
    bad: dict[str, HostError] = {}
    deadline = run.clock.now() + START_TIMEOUT
    for spec, session, future in futures:
        try:
            reply = session.wait(future, wire.Start.OP, max(0.1, deadline - run.clock.now()))
        except HostError as error:
            if error.kind == Trouble.STOPPED:  # by a user, from another machine
                run.stop.ask(kill=False)
                raise Cancelled from error
            bad[spec.host] = error
        else:
            if not is_validation(attempt) and spec.id not in told:
                told.add(spec.id)
                run.emit(TaskStarted(str(spec.id), spec.host, attempt, reply.pid or 0))
    return bad


def endless(plan: RunPlan, spec: TaskSpec) -> bool:
    """Return True if it serves until it is stopped: parameter servers do, and the workers that they serve."""
    return plan.completion is Completion.CHIEF and spec.id.role is not Role.CHIEF


def launch(run: Run, attempt: str) -> None:
    """Start every task of the plan; raise PhaseFailed when one cannot, the started ones still run."""
    with phase(run, Phase.LAUNCH):
        recovery.gather(run, run.timings.host_return)
        if run.stop.asked:
            raise Cancelled
        fail_on(run, Phase.LAUNCH, recovery.losses(run))
        if run.fleet.sessions != run.leased:  # since then: in the validation, too
            lease(run, Phase.LAUNCH)  # the agents that are gone held theirs
        fail_on(run, Phase.LAUNCH, start(run, attempt, run.plan.tasks, run.staged.work))
