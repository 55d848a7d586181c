"""Plans for tests: made by hand from a few words, or any plan at all."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.model import Admission, Host, Inventory, Job, Role, RunPlan
from orchestrator.planning import plan


def make(
    *hosts: Host,
    job: Job | None = None,
    command: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    sources: tuple[str, ...] = (),
) -> RunPlan:
    inventory = Inventory(hosts, job or Job())
    layout = plan.lay_out(inventory, command=command, env=env or {}, sources=sources)
    return plan.assign(
        inventory,
        layout,
        run="r1",
        name="",
        owner="ada@laptop",
        created=1e9,
        admission=Admission(),
        notes=layout.notes,
    )


def host(name: str, role: str = "worker", **other: object) -> Host:
    return Host(name, name, name, role=Role(role), **other)  # type: ignore[arg-type]
