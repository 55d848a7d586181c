"""Opening the sessions, becoming the run's keeper on every node, and leasing its ports."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from orchestrator.errors import HostError
from orchestrator.events import HostConnected, Phase
from orchestrator.fleet import Session
from orchestrator.phases.context import Run, fail_on, phase

_OTHER_PORTS = 40  # how many times the next ports are tried before giving up


def connect(run: Run) -> None:
    """Open a session with every host, be its only keeper there, lease the ports; raise PhaseFailed."""
    with phase(run, Phase.CONNECT):
        fail_on(run.bus, Phase.CONNECT, open_sessions(run))
        keep(run)
        lease(run)


def open_sessions(run: Run) -> dict[str, HostError]:
    """Open what can be opened; return the errors of the others."""
    bad = run.fleet.connect(run.hosts, lambda host, seconds: run.bus.emit(HostConnected(host, seconds)))
    for name, session in run.fleet.sessions.items():
        if (refused := session.hello.get("state_error")) is not None:
            bad[name] = HostError(
                name, refused["what"], kind="state", why=refused["why"], hint=refused.get("hint", "")
            )
    return bad


def keep(run: Run) -> None:
    """Be the only keeper of the run on every node; raise PhaseFailed when another one is."""
    plan = msgspec.json.encode(run.plan).decode()
    answers = run.fleet.ask("keep", lambda _: {"run": run.id, "who": run.who, "plan": plan})
    bad = dict(answers.bad)
    for name, reply in answers.good.items():
        holder = reply.result.get("holder") or {}
        if not reply.result["granted"] and holder.get("who") != run.who:
            bad[name] = HostError(
                name,
                f"follows run {run.id} for another keeper",
                kind="kept",
                why=f"{holder.get('who', 'somebody')} keeps it",
                hint=f"run `orchestrate tail {run.id}` there",
            )
    fail_on(run.bus, Phase.CONNECT, bad)


def lease(run: Run) -> None:
    """Reserve the task ports on every machine, other ones where that was asked for.

    Raise PhaseFailed with who holds them.
    """
    for shift in range(_OTHER_PORTS):
        answers = run.fleet.ask("lease", lambda session: _wanted(run, session))
        bad = dict(answers.bad)
        moved: dict[str, int] = {}
        for name, reply in answers.good.items():
            conflicts = reply.result["conflicts"]
            if conflicts and run.options.other_ports and run.replan is not None:
                moved[name] = min(spec.port for spec in run.plan.tasks if spec.host == name) + 10 + shift
            elif conflicts:
                bad[name] = _held(name, conflicts)
        fail_on(run.bus, Phase.CONNECT, bad)
        if not moved or run.replan is None:
            return
        run.plan = run.replan(moved)
    fail_on(
        run.bus,
        Phase.CONNECT,
        {run.hosts[0].name: HostError(run.hosts[0].name, "has no free ports", kind="port")},
    )


def _wanted(run: Run, session: Session) -> Mapping[str, Any]:
    ports = {str(spec.port): str(spec.id) for spec in run.plan.tasks if spec.host == session.host.name}
    return {"run": run.id, "owner": run.plan.owner, "ports": ports}


def _held(name: str, conflicts: list[dict[str, Any]]) -> HostError:
    first = conflicts[0]
    ports = ", ".join(str(conflict["port"]) for conflict in conflicts)
    since = first.get("since")
    when = (
        f" since {time.strftime('%H:%M:%S', time.localtime(since))}" if isinstance(since, int | float) else ""
    )
    return HostError(
        name,
        f"has task port {ports} taken by run {first['run']}",
        kind="lease",
        why=f"{first['owner']} launched it; it holds the port{when}",
        hint=f"orchestrate stop {first['run']}, or launch with --other-ports",
    )
