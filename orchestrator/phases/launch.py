"""Starting all tasks: a barrier before, and all or none after."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from orchestrator.errors import HostError
from orchestrator.events import Phase, TaskStarted
from orchestrator.fleet import Cancelled, Reply
from orchestrator.model import TaskSpec
from orchestrator.phases import recovery
from orchestrator.phases.connect import for_nodes, lease
from orchestrator.phases.context import Run, fail_on, phase

LOG_CAP = 16 * 2**30  # bytes of one task's log that a node keeps
START_TIMEOUT = 60.0
RETURN = 30.0  # seconds in which a host that was lost meanwhile may come back


def start(run: Run, attempt: str, specs: Sequence[TaskSpec], cwd: Mapping[str, str]) -> dict[str, HostError]:
    """Ask every node to start its tasks, all at once; return what went wrong, by host."""
    plan = msgspec.json.encode(for_nodes(run.plan)).decode()
    futures = []
    for spec in specs:
        session = run.fleet.sessions[spec.host]
        fields: dict[str, Any] = {
            "run": run.id,
            "attempt": attempt,
            "task": str(spec.id),
            "plan": plan,
            "spec": {
                "argv": spec.argv,
                "env": {**spec.env, **run.secrets},
                "cwd": cwd[spec.host],
                "setup": spec.setup,
                "python": run.plan.host(spec.host).python,
                "grace": run.plan.grace,
                "port": spec.port,
                "role": spec.id.role.value,
                "lifeline": run.plan.lifeline,
                "log_cap": LOG_CAP,
            },
        }
        futures.append((spec, session, session.submit("start", **fields)))
    bad: dict[str, HostError] = {}
    deadline = time.monotonic() + START_TIMEOUT
    for spec, session, future in futures:
        try:
            reply: Reply = session.wait(future, "start", max(0.1, deadline - time.monotonic()))
        except HostError as error:
            if error.kind == "stopped":  # by a user, from another machine
                run.stop.ask(kill=False)
                raise Cancelled from error
            bad.setdefault(spec.host, error)
        else:
            if attempt != VALIDATE:
                run.bus.emit(TaskStarted(str(spec.id), spec.host, attempt, reply.result["pid"]))
    return bad


VALIDATE = "validate"


def launch(run: Run, attempt: str) -> None:
    """Start every task of the plan; raise PhaseFailed when one cannot, the started ones still run."""
    with phase(run, Phase.LAUNCH):
        _assemble(run)
        fail_on(run.bus, Phase.LAUNCH, start(run, attempt, run.plan.tasks, run.work))


def _assemble(run: Run) -> None:
    """Have every host at hand again; raise PhaseFailed when one was lost meanwhile and stays so."""
    sessions = dict(run.fleet.sessions)
    recovery.gather(run, RETURN)
    if run.stop.asked:
        raise Cancelled
    fail_on(
        run.bus,
        Phase.LAUNCH,
        {
            name: HostError(
                name,
                "was lost before its tasks were started",
                kind="lost",
                why=f"no connection could be made for {time.monotonic() - since:.0f} s",
                hint=f"ssh {run.plan.host(name).ssh}, to see whether the machine still answers",
            )
            for name, since in run.lost.items()
        },
    )
    if run.fleet.sessions != sessions:
        lease(run)  # the agents that are gone held theirs
