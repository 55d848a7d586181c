"""`preflight`: examine the hosts of an inventory as if each had a task."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from orchestrator.events import Phase, Stamped
from orchestrator.model import FrameworkName, RunPlan
from orchestrator.phases.context import report_failures
from orchestrator.phases.preflight import Findings, examine
from orchestrator.requests import LaunchRequest, PreflightRequest
from orchestrator.store.bus import Bus
from orchestrator.text import count
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import unconnected
from orchestrator.verbs.plan import make_plan


def check(
    planned: RunPlan,
    caller: Caller,
    show: Callable[[Stamped], None] = lambda _: None,
    step: Callable[[str], None] = lambda _: None,
) -> Findings:
    """Examine the hosts of a plan; `show` is given each event, `step` what is awaited."""
    emit, findings = Bus(show).emit, Findings({}, (), (), {})
    with unconnected(planned.hosts, caller) as fleet:
        step(f"connecting to {count(len(planned.hosts), 'host')}")
        unreachable = fleet.connect(planned.hosts)
        report_failures(emit, Phase.CONNECT, unreachable)
        if fleet.sessions:
            findings = examine(fleet, emit, planned, closely=True, on_step=step)
    return replace(findings, failed={**unreachable, **findings.failed})


def everything(request: PreflightRequest) -> RunPlan:
    """A plan of the job on all hosts, spares too: they are checked as if they had a task."""
    hosts = tuple(replace(host, spare=False) for host in request.inventory.hosts)
    job = request.inventory.job
    # Without a command the tasks would run our program, which is TensorFlow's.
    other = not job.command and job.framework not in (FrameworkName.AUTO, FrameworkName.TENSORFLOW)
    whole = replace(request.inventory, hosts=hosts)
    launch = LaunchRequest(inventory=whole, command=("train.py",) if other else ())
    return make_plan(launch, sends=False).plan
