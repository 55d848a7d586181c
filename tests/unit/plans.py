"""Plans for tests, built by hand from a few values, or generated at random."""

from collections.abc import Mapping

from orchestrator.model import Host, Inventory, Job, Role, RunPlan
from orchestrator.planning import plan
from orchestrator.planning.commands import choose_command
from orchestrator.program.findings import Program
from orchestrator.program.sources import SourceFile
from orchestrator.requests import LaunchRequest


def make(
    *hosts: Host,
    job: Job | None = None,
    command: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    sources: tuple[str, ...] = (),
    shell: str = "",
) -> RunPlan:
    inventory = Inventory(hosts, job or Job())
    request = LaunchRequest(inventory=inventory, command=command, env=env or {})
    files = tuple(SourceFile(f"{number}.py", text) for number, text in enumerate(sources))
    programs = (Program(command, files, shell=shell),)
    facts = plan.LaunchFacts(run="r1", owner="ada@laptop", created=1e9, programs=programs)
    return plan.make(choose_command(request), facts)[0]


def host(name: str, role: str = "worker", **other: object) -> Host:
    return Host(name, name, name, role=Role(role), **other)  # type: ignore[arg-type]
