"""Starting all tasks once every host is ready; before that, importing their frameworks in standbys."""

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from msgspec.structs import replace

from orchestrator import wire
from orchestrator.errors import HostError, HostErrors, Trouble
from orchestrator.events import Noted, Phase, TaskStarted
from orchestrator.fleet import Cancelled
from orchestrator.frameworks import FRAMEWORKS
from orchestrator.model import Completion, EarlyImports, Role, TaskId, TaskSpec
from orchestrator.names import is_validation
from orchestrator.phases import recovery
from orchestrator.phases.connect import lease, machine, plan_text
from orchestrator.phases.context import PhaseFailed, Run, fail_on, log, phase
from orchestrator.phases.follow import LOG_CAP
from orchestrator.planning.commands import WORKER_ENTRY
from orchestrator.program.ahead import BUNDLED
from orchestrator.ranges import fold, grouped
from orchestrator.run import restarts
from orchestrator.text import count, duration, size

START_TIMEOUT = 60.0


def launch(run: Run, attempt: str) -> None:
    """Start every task of the plan; raise PhaseFailed if one cannot start: the started ones keep running."""
    with phase(run, Phase.LAUNCH):
        recovery.wait_for_lost(run, run.timings.host_return)
        if run.stop.requested:
            raise Cancelled
        fail_on(run, Phase.LAUNCH, recovery.losses(run))
        if run.fleet.sessions != run.leased:  # including during validation
            lease(run, Phase.LAUNCH)  # leases ended with the previous agents
        fail_on(run, Phase.LAUNCH, start(run, attempt, run.plan.tasks, run.staged.work))


def start(run: Run, attempt: str, specs: Sequence[TaskSpec], cwd: Mapping[str, str]) -> HostErrors:
    """Ask every node to start its tasks and to send their output, all at once; return the errors by host.

    A host that is lost meanwhile gets the request again when it is back: starting a task is idempotent.
    """
    reported: set[TaskId] = set()  # if a host has several tasks, some may have started before it was lost
    with contextlib.ExitStack() as failed:
        failed.callback(_unfollow, run)
        bad = _start(run, attempt, specs, cwd, reported)
        if any(error.lost for error in bad.values()):
            _unfollow(run)
            recovery.wait_for_lost(run, run.timings.host_return)
            if run.stop.requested:
                raise Cancelled
            back = {name for name, error in bad.items() if error.lost and name in run.fleet.sessions}
            # Leases ended with the previous agents; the same ports, which the other tasks have in TF_CONFIG.
            lease(run, Phase.LAUNCH, move=False)
            bad = {name: error for name, error in bad.items() if name not in back}
            bad |= _start(run, attempt, [spec for spec in specs if spec.host in back], cwd, reported)
        if not bad:
            failed.pop_all()
    return bad


def _unfollow(run: Run) -> None:
    """End the streams of a start that failed: waits for lost hosts drop frames, which would leave a hole."""
    run.followed.clear()
    for session in run.fleet.sessions.values():
        session.unfollow()


def _start(
    run: Run, attempt: str, specs: Sequence[TaskSpec], cwd: Mapping[str, str], reported: set[TaskId]
) -> HostErrors:
    """Ask once, and add each task whose start is reported to `reported`."""
    if run.plan.untrusted:
        raise PhaseFailed(Phase.LAUNCH, f"nothing of this run is started from here: {run.plan.untrusted}")
    plan = plan_text(run)
    futures = []
    for spec in specs:
        session = run.fleet.sessions[spec.host]
        started = spec_of(run, spec, attempt, cwd[spec.host])
        request = wire.Start(run=run.id, attempt=attempt, task=str(spec.id), plan=plan, spec=started)
        futures.append((spec, session, session.submit(request)))
    for name, ids in grouped((spec.host, spec.id) for spec in specs).items():
        session, tasks = run.fleet.sessions[name], [wire.From(str(task), 0, 0) for task in ids]
        follow = wire.Follow(run=run.id, attempt=attempt, tasks=tasks)
        run.followed[name] = session, session.submit(follow)
    bad: HostErrors = {}
    cold: list[tuple[str, str]] = []  # why it had no standby, and which task
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
            if reply.warm:
                log.info("%s of attempt %s was started ahead", spec.id, attempt)
            if not is_validation(attempt) and spec.id not in reported:
                reported.add(spec.id)
                if reply.cold:
                    cold.append((reply.cold, str(spec.id)))
                run.emit(TaskStarted(str(spec.id), spec.host, attempt, reply.pid or 0))
    for why, names in grouped(cold).items():
        log.info("%s: not started ahead: %s", fold(names), why)
        if run.plan.keep_warm:
            run.emit(Noted(f"{fold(names)}: imports again: {why}"))
    return bad


def spec_of(run: Run, spec: TaskSpec, attempt: str, cwd: str) -> wire.Spec:
    """Describe a task for its node."""
    terminal, host = run.plan.terminal, run.plan.host(spec.host)
    validates = is_validation(attempt)
    if terminal and (terminal.task != spec.id or validates):
        terminal = None
    kind = {"TERM": terminal.kind} if terminal else {}
    in_job = bool(host.job)  # no task may outlive it, and its keeper is part of it
    ahead = run.plan.ahead
    # These run until they are stopped: ps and their workers, and services.
    serves = run.plan.completion is Completion.CHIEF and spec.id.role is not Role.CHIEF
    serves |= spec.id.role is Role.SERVICE
    if validates:
        ahead = BUNDLED if spec.argv[1:3] == WORKER_ENTRY else EarlyImports()
    elif host.command:
        ahead = EarlyImports()
    return wire.Spec(
        argv=spec.argv,
        env={**run.placed.env.get(spec.host, {}), **kind, **spec.env, **run.secrets},
        cwd=cwd,
        setup=spec.setup,
        python=host.python,
        grace=run.plan.grace,
        port=spec.port,
        endless=in_job or serves,
        lifeline=run.timings.least_fence if in_job else run.plan.lifeline,
        fence=restarts.fence(run.plan, run.timings.least_fence) if not validates else None,
        stacks=run.plan.stacks,
        log_cap=LOG_CAP,
        address=host.address,
        interfaces=FRAMEWORKS[run.plan.recipe.framework].interfaces,
        terminal=(terminal.rows, terminal.columns) if terminal else None,
        imports=ahead.imports,
        preset=ahead.preset,
        free=tuple(run.secrets),
        guest=validates and ahead is BUNDLED,
    )


# --- tasks started ahead ---
#
# A standby is a Python that imports a task's framework before the task starts: while hosts are prepared, or
# the previous attempt runs. No decision depends on standbys: a task without one starts normally.

_KEEPS = 10.0  # seconds for a host to answer


def begin_ahead(run: Run, hosts: Collection[str] | None = None, *, spare: bool = False) -> None:
    """Have hosts start standbys for their tasks; `spare`: only if memory allows two per task."""
    if not run.plan.ahead.imports or run.plan.terminal is not None or run.plan.untrusted:
        log.info(
            "nothing is imported ahead: %s", run.plan.ahead.why or "the tasks are not to be started from here"
        )
        return
    names = run.names if hosts is None else hosts
    begin_these(run, str(run.plan.attempt), [t for t in run.plan.tasks if t.host in names], spare=spare)


def begin_these(run: Run, attempt: str, tasks: Sequence[TaskSpec], *, spare: bool) -> None:
    """Have hosts start standbys for these tasks."""
    specs = [(spec.host, spec_of(run, spec, attempt, "~")) for spec in tasks]
    for name, ahead in grouped((host, spec) for host, spec in specs if spec.imports).items():
        if (session := run.fleet.sessions.get(name)) is not None:
            # They may wait longer than the run: without its secrets.
            waiting = [
                replace(spec, env={key: value for key, value in spec.env.items() if key not in spec.free})
                for spec in ahead
            ]
            answer = session.submit(wire.Standby(specs=waiting, spare=spare))
            answer.add_done_callback(partial(_answered, name))


def _answered(name: str, future: Future[wire.Standbys]) -> None:
    if why := future.exception() or "; ".join(future.result().why):
        log.info("%s: starts no task ahead: %s", name, why)


def due(run: Run, trains: Iterable[float]) -> bool:
    """Return True if tasks have trained (since `trains`) long enough to start standbys beside them."""
    later, before = run.plan.restarts.most > 0 or run.plan.keep_warm > 0, run.clock.now() - run.timings.ahead
    return later and any(since <= before for since in trains)


def keep_warm(run: Run) -> None:
    """Keep the tasks' standbys for the next launch, and report their memory."""
    plan = run.plan
    if not plan.keep_warm or not run.started:
        return
    why = plan.ahead.why
    if any(host.job or host.container for host in plan.hosts):
        why = "the Slurm job or the containers of the hosts end with the run"
    elif plan.terminal is not None:
        why = "a task has a terminal"
    if why or not plan.ahead.imports:
        run.emit(Noted(f"nothing is kept warm: {why or 'no import is known'}"))
        return
    begin_ahead(run, spare=True)
    requests = {
        host.name: wire.StandbyKeep(seconds=plan.keep_warm, owner=plan.owner, machine=machine(host))
        for host in run.hosts
        if host.name in run.fleet.sessions
    }
    answers = run.fleet.ask(requests, timeout=_KEEPS)
    waiting = [(name, task) for name, reply in answers.good.items() for task in reply.waiting]
    if waiting:
        where = fold(dict.fromkeys(name for name, _ in waiting))
        ready = [task.memory for _, task in waiting if task.memory]
        memory = f"{size(sum(ready) / len(ready))} of memory each" if ready else "still importing"
        what = f"{count(len(waiting), 'task')} on {where}, {memory}"
        time = duration(plan.keep_warm).removesuffix(" 00 s")
        run.emit(Noted(f"kept warm for {time}: {what}; `orchestrate clean` ends them"))
    else:
        run.emit(Noted("nothing is kept warm: too little memory is free, or no host answered"))
