"""Opening the sessions, becoming the run's keeper on every node, and leasing its ports."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import msgspec
from msgspec.structs import replace

from orchestrator import wire
from orchestrator.checks.cluster import SAME_STATE, other_state, same_state
from orchestrator.config.targets import is_loopback
from orchestrator.errors import HostError, Trouble
from orchestrator.events import HostConnected, Noted, Phase
from orchestrator.fleet import Answers, Session
from orchestrator.frameworks import alone
from orchestrator.model import Host, RunPlan, Way
from orchestrator.names import RunId
from orchestrator.phases.context import Run, fail_on
from orchestrator.ranges import fold, grouped
from orchestrator.run import restarts
from orchestrator.store.key import seal

_OTHER_PORTS = 40  # how many times the next ports are tried before giving up
_MOMENT = 1.0  # seconds in which the agents of a run that has just ended let go of its ports
_LOOK = 0.1


def open_sessions(run: Run, hosts: Sequence[Host] | None = None) -> dict[str, HostError]:
    """Open what can be opened, of all hosts unless some are named; return the errors of the others."""
    wanted = run.hosts if hosts is None else hosts

    def on_open(session: Session, seconds: float) -> None:
        run.emit(HostConnected(session.host.name, seconds, session.clock_offset))

    bad = run.fleet.connect(wanted, on_open)
    opened = [run.fleet.sessions[host.name] for host in wanted if host.name in run.fleet.sessions]
    for remark, names in grouped((one.link.remark, one.host.name) for one in opened).items():
        if remark:
            run.emit(Noted(f"{fold(names)}: over OpenSSH's own client, for {remark}"))
    for session in opened:
        if (refused := session.hello.state_error) is not None:
            name, hint = (
                session.host.name,
                "set `state` for it in hosts.toml to a folder of your own on a local disk",
            )
            bad[name] = HostError(name, refused.said, kind="state", why=refused.told, hint=hint)
    for name, first in same_state((name, one.hello) for name, one in run.fleet.sessions.items()).items():
        what, hint = f"has the state folder of {first} too", other_state(name)
        bad[name] = HostError(name, what, kind="state", why=SAME_STATE, hint=hint)
    return bad


def keep(run: Run) -> dict[str, HostError]:
    """Become the only keeper of the run on every node; return who refuses, and why.

    The first host alone, then the others: of two that want it at the same moment one has it there, and
    so everywhere.
    """
    first, others = run.names[:1], run.names[1:]
    refused = _keep_on(run, first)
    if any(error.kind == Trouble.KEPT for error in refused.values()):
        return refused
    return {**refused, **_keep_on(run, others)}


def _keep_on(run: Run, hosts: list[str]) -> dict[str, HostError]:
    answers = run.fleet.ask(wire.Keep(run=run.id, who=run.who, plan=plan_text(run)), hosts=hosts)
    bad = dict(answers.bad)
    for name, reply in answers.good.items():
        if not reply.granted:
            who = (reply.holder and reply.holder.who) or "somebody"
            if who == run.who:  # an agent of ours that has yet to notice that it was left
                run.losses.unkept.add(name)
                continue
            bad[name] = HostError(
                name,
                f"follows run {run.id} for another keeper",
                kind=Trouble.KEPT,
                why=f"{who} keeps it",
                hint=f"run `orchestrate tail {run.id}` there",
            )
    return bad


def plan_text(run: Run) -> str | None:
    """The plan as a node keeps it for whoever takes over, with our seal; None where it is not ours to give.

    Then the nodes keep what they have: only with that can the controller that made it take the run over.
    """
    if run.plan.hearsay:
        return None
    return seal(msgspec.json.encode(for_nodes(run.plan)), run.key)


def for_nodes(plan: RunPlan) -> RunPlan:
    """All but where tasks stand, which `cluster` says once for all, and how we reach the hosts."""

    def unreached(host: Host) -> Host:
        return replace(
            host, ssh=host.name, user=None, port=None, identity=None, ssh_config=None, via=Way.AUTO
        )

    tasks = (replace(spec, env=alone(plan.recipe.framework, spec.env)) for spec in plan.tasks)
    return replace(
        plan,
        tasks=tuple(tasks),
        hosts=tuple(map(unreached, plan.hosts)),
        spares=tuple(map(unreached, plan.spares)),
        retired=tuple(map(unreached, plan.retired)),
    )


def keep_again(run: Run, session: Session) -> None:
    """Ask a host that came back to hold us for the keeper; one that does not is asked again later.

    The agent that we had there may still be about to notice that it was left.
    """
    name = session.host.name
    run.losses.unkept.add(name)

    def answered(future: Future[wire.Keeping]) -> None:
        if not future.cancelled() and future.exception() is None and future.result().granted:
            run.loop.post(partial(run.losses.unkept.discard, name))

    session.submit(wire.Keep(run=run.id, who=run.who)).add_done_callback(answered)


def lease(run: Run, within: Phase = Phase.CONNECT, *, move: bool = True) -> None:
    """Reserve the task ports on every machine, other ones where that was asked for and they may `move`.

    Raise PhaseFailed with who holds them.
    """
    for shift in range(_OTHER_PORTS):
        may_move = move and run.plan.admission.other_ports
        answers = _ask_for_ports(run, 0.0 if may_move else _MOMENT)
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
        run.plan = restarts.move(run.plan, moved)
        run.folder.write_plan(run.plan)
    name = run.hosts[0].name
    fail_on(run, Phase.CONNECT, {name: HostError(name, "has no free ports", kind="port")})


def _ask_for_ports(run: Run, patience: float) -> Answers[wire.Leased]:
    """All hosts at once, and again for as long as others hold some of them."""
    questions = {}
    for host in run.hosts:
        ports = {str(spec.port): str(spec.id) for spec in run.plan.tasks_on(host.name)}
        questions[host.name] = wire.Lease(
            run=run.id, owner=run.plan.owner, machine=machine(host), ports=ports
        )
    deadline = run.clock.now() + patience
    while True:
        answers = run.fleet.ask(questions)
        held = any(_of_others(run, reply) for reply in answers.good.values())
        if not held or run.clock.now() > deadline or run.clock.flagged(run.stop, _LOOK):
            return answers


def machine(host: Host) -> str:
    """Return what tells a host from others on the same machine: a loopback address, else nothing."""
    return host.address if is_loopback(host.address) else ""


def _of_others(run: Run, reply: wire.Leased) -> list[wire.Conflict]:
    return [one for one in reply.conflicts if one.run != run.id]


def _held(name: str, conflicts: Sequence[wire.Conflict]) -> HostError:
    """Return who holds a host's ports."""
    first, ports = conflicts[0], ", ".join(str(conflict.port) for conflict in conflicts)
    is_run = RunId.PATTERN.fullmatch(first.run or "")  # a node's word
    stop = f"`orchestrate stop {first.run}`, or launch" if is_run else "launch"
    who = f"run {first.run} ({first.owner})" if first.run else "another run"
    what = f"has task port {ports} taken by {who}"
    return HostError(name, what, kind="lease", hint=f"{stop} with --wait, or with --other-ports")
