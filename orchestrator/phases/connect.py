"""Opening the sessions, becoming the run's keeper on every node, and leasing its ports."""

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from orchestrator import wire
from orchestrator.checks.cluster import SAME_STATE, other_state, same_state
from orchestrator.config.targets import is_loopback
from orchestrator.errors import HostError, HostErrors, Trouble
from orchestrator.events import HostConnected, Noted, Phase
from orchestrator.fleet import Session
from orchestrator.frameworks import alone
from orchestrator.model import Host, RunPlan, Way
from orchestrator.names import RunId
from orchestrator.phases.context import Run, fail_on
from orchestrator.ranges import fold, grouped
from orchestrator.run import restarts
from orchestrator.store.key import seal

_OTHER_PORTS = 40  # attempts with the next ports before giving up
_MOMENT = 1.0  # seconds for the agents of a run that has just ended to release its ports
_LOOK = 0.1
_AGAIN = 5.0  # seconds until a host that refuses us as the keeper gets another request


def open_sessions(run: Run, hosts: Sequence[Host] | None = None, *, new: bool = False) -> HostErrors:
    """Open sessions with these hosts, by default all; return the errors of those that failed.

    In a `new` run, requests that do not depend on a host's earlier replies are sent at the same time.
    """
    chosen = run.hosts if hosts is None else hosts

    def ahead(host: Host) -> list[wire.Request[Any]]:
        if not new:
            return []
        leases = [] if run.plan.admission.wait else [_lease(run, host)]
        return [wire.Keep(run=run.id, who=run.who), *leases]

    def on_open(session: Session, seconds: float) -> None:
        run.emit(HostConnected(session.host.name, seconds, session.clock_offset))

    bad = run.fleet.connect(chosen, on_open, ahead)
    opened = [run.fleet.sessions[host.name] for host in chosen if host.name in run.fleet.sessions]
    for remark, names in grouped((session.link.remark, session.host.name) for session in opened).items():
        if remark:
            run.emit(Noted(f"{fold(names)}: {remark}"))
    for session in opened:
        if (refused := session.hello.state_error) is not None:
            hint = "set `state` in hosts.toml to a folder of your own on a local disk"
            name = session.host.name
            bad[name] = HostError(name, refused.summary, kind="state", why=refused.details, hint=hint)
    for name, first in same_state((name, peer.hello) for name, peer in run.fleet.sessions.items()).items():
        what, hint = f"shares the state folder of {first}", other_state(name)
        bad[name] = HostError(name, what, kind="state", why=SAME_STATE, hint=hint)
    return bad


def keep_new(run: Run) -> HostErrors:
    """Become the keeper of a new run on every node, all at once; return the hosts that refuse, and why.

    Only a node that has the plan can be taken over. So nodes get it after all have accepted this keeper;
    their replies are not awaited, since every start sends the plan again.
    """
    if refused := _keep_on(run, wire.Keep(run=run.id, who=run.who), run.names):
        return refused
    publish = wire.Keep(run=run.id, who=run.who, plan=plan_text(run))
    for session in run.fleet.sessions.values():
        session.submit(publish)
    return {}


def keep(run: Run) -> HostErrors:
    """Become the run's only keeper on every node; return the hosts that refuse, and why.

    The first host gets the request before the others: of two competing keepers, the one that it accepts
    gets all hosts.
    """
    first, others = run.names[:1], run.names[1:]
    request = wire.Keep(run=run.id, who=run.who, plan=plan_text(run))
    refused = _keep_on(run, request, first)
    if any(error.kind == Trouble.KEPT for error in refused.values()):
        return refused
    return {**refused, **_keep_on(run, request, others)}


def _keep_on(run: Run, request: wire.Keep, hosts: list[str]) -> HostErrors:
    answers = run.fleet.ask(request, hosts=hosts)
    bad = dict(answers.bad)
    for name, reply in answers.good.items():
        if not reply.granted:
            who = (reply.holder and reply.holder.who) or "unknown"
            if who == run.who:  # our own agent has not noticed yet that its connection is gone
                run.loop.after(_AGAIN, partial(keep_again, run, run.fleet.sessions[name]))
                continue
            bad[name] = HostError(
                name,
                f"is connected to another keeper of run {run.id}",
                kind=Trouble.KEPT,
                why=f"its keeper is {who}",
                hint=f"run `orchestrate tail {run.id}` there",
            )
    return bad


def plan_text(run: Run) -> str | None:
    """Return the plan as a node stores it for a takeover, with our seal; None if the plan is not ours.

    In that case the nodes keep the plan they have: the controller that sealed it needs it for a takeover.
    """
    if run.plan.untrusted:
        return None
    return seal(msgspec.json.encode(for_nodes(run.plan)), run.key)


def for_nodes(plan: RunPlan) -> RunPlan:
    """Return the plan without our logins to the hosts, and without the copies of `cluster` in its tasks."""

    def unreached(host: Host) -> Host:
        own = {"user": None, "port": None, "identity": None, "ssh_config": None, "via": Way.AUTO}
        return replace(host, ssh=host.name, **own)

    tasks = tuple(replace(spec, env=alone(plan.recipe.framework, spec.env)) for spec in plan.tasks)
    groups = {name: tuple(map(unreached, getattr(plan, name))) for name in ("hosts", "spares", "retired")}
    return replace(plan, tasks=tasks, **groups)


def keep_again(run: Run, session: Session) -> None:
    """Ask a host that is back to accept us as the keeper; repeat this later if it refuses.

    Our previous agent there may not have noticed the lost connection yet.
    """

    def answered(future: Future[wire.Keeping]) -> None:
        granted = future.exception() is None and future.result().granted
        if not granted and run.fleet.sessions.get(session.host.name) is session:
            run.loop.after(_AGAIN, partial(keep_again, run, session))

    run.loop.when_done(session.submit(wire.Keep(run=run.id, who=run.who)), answered)


def lease(run: Run, within: Phase = Phase.CONNECT, *, move: bool = True) -> None:
    """Reserve the task ports on every machine; with --other-ports and `move`, others where they are taken.

    Raise PhaseFailed with the holders of taken ports.
    """
    for shift in range(_OTHER_PORTS):
        may_move = move and run.plan.admission.other_ports
        questions = {host.name: _lease(run, host) for host in run.hosts}
        deadline = run.clock.now() + (0.0 if may_move else _MOMENT)
        while True:
            answers = run.fleet.ask(questions)
            held = any(_of_others(run, reply) for reply in answers.good.values())
            if not held or run.clock.now() > deadline or run.clock.flagged(run.stop, _LOOK):
                break
        bad = dict(answers.bad)
        moved: dict[str, int] = {}
        for name, reply in answers.good.items():
            conflicts = _of_others(run, reply)
            if conflicts and may_move:
                moved[name] = min(spec.port for spec in run.plan.tasks_on(name)) + 10 + shift
            elif conflicts:
                bad[name] = _held(name, conflicts)
        fail_on(run, within, bad)
        if not moved:
            run.leased = dict(run.fleet.sessions)
            return
        run.replan(restarts.move(run.plan, moved))
    name = run.hosts[0].name
    fail_on(run, Phase.CONNECT, {name: HostError(name, "has no free ports", kind="port")})


def _lease(run: Run, host: Host) -> wire.Lease:
    ports = {str(spec.port): str(spec.id) for spec in run.plan.tasks_on(host.name)}
    since, owner = run.plan.created, run.plan.owner
    return wire.Lease(run=run.id, owner=owner, machine=machine(host), since=since, ports=ports)


def machine(host: Host) -> str:
    """Return a host's loopback address, which distinguishes hosts on one machine; otherwise ""."""
    return host.address if is_loopback(host.address) else ""


def _of_others(run: Run, reply: wire.Leased) -> list[wire.Conflict]:
    return [conflict for conflict in reply.conflicts if conflict.run != run.id]


def _held(name: str, conflicts: Sequence[wire.Conflict]) -> HostError:
    """Return the error of a host whose ports another run holds."""
    first, ports = conflicts[0], ", ".join(str(conflict.port) for conflict in conflicts)
    is_run = RunId.PATTERN.fullmatch(first.run or "")  # reported by a node
    ours = is_run and first.task is not None  # of another user's run, only the ports are visible
    stop = f"`orchestrate stop {first.run}`, or launch" if ours else "launch"
    who = f"run {first.run} ({first.owner})" if first.run else "another run"
    what = f"already uses task port {ports} for {who}"
    return HostError(name, what, kind="lease", hint=f"{stop} with --wait, or with --other-ports")
