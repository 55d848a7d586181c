"""`preflight`: examine the hosts of an inventory as if each had a task."""

from msgspec.structs import replace

from orchestrator.events import Phase, Stepped
from orchestrator.fleet.containers import Inside
from orchestrator.model import FrameworkName, RunPlan
from orchestrator.phases.context import Emit, report_failures
from orchestrator.phases.preflight import Findings, examine
from orchestrator.planning.commands import choose_command
from orchestrator.planning.plan import make
from orchestrator.requests import LaunchRequest, PreflightRequest
from orchestrator.text import count
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import unconnected
from orchestrator.verbs.code import look
from orchestrator.verbs.environment import check_data, locked
from orchestrator.verbs.reading import facts_of


def check(planned: RunPlan, caller: Caller, emit: Emit, *, all_pairs: bool = False) -> Findings:
    """Examine the hosts of a plan."""
    findings = Findings({}, (), (), {})
    with unconnected(planned.hosts, caller, Inside(planned.run)) as fleet:
        emit(Stepped("", f"connect to {count(len(planned.hosts), 'host')}"))
        unreachable = fleet.connect(planned.hosts)
        report_failures(emit, Phase.CONNECT, unreachable)
        if fleet.sessions:
            findings = examine(fleet, emit, planned, closely=True, all_pairs=all_pairs)
    return replace(findings, failed=unreachable | findings.failed)


def everything(request: PreflightRequest) -> RunPlan:
    """Return a plan of the job on all hosts including spares, which are checked as if they had a task."""
    hosts = tuple(replace(host, spare=False) for host in request.inventory.hosts)
    job = request.inventory.job
    # Without a command the tasks would run our program, which needs TensorFlow.
    other = not job.command and job.framework not in (FrameworkName.AUTO, FrameworkName.TENSORFLOW)
    whole = replace(request.inventory, hosts=hosts)
    check_data(whole)
    environment = None if whole.environment is None else locked(whole.environment)[0]
    launch = choose_command(LaunchRequest(inventory=whole, command=("train.py",) if other else ()))
    facts = replace(facts_of(launch, look(whole, None)), run="preflight", environment=environment)
    return make(launch, facts)[0]
