"""Plans for tests: made by hand from a few words, or any plan at all."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from orchestrator.model import Admission, Host, Inventory, Job, Role, RunPlan
from orchestrator.planning import plan


def make(
    *hosts: Host,
    job: Job | None = None,
    command: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    sources: tuple[str, ...] = (),
) -> RunPlan:
    inventory = Inventory(hosts, job or Job())
    layout = plan.lay_out(inventory, command=command, env=env or {}, environ=environ or {}, sources=sources)
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


_addresses = st.one_of(
    st.from_regex(r"[a-z0-9-]{1,12}(\.[a-z0-9]{1,6})?", fullmatch=True),
    st.ip_addresses().map(str),
)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    """Hosts of every role, some spare, at least one of them not."""
    hosts: list[Host] = []
    for number in range(draw(st.integers(1, 8))):
        tasks = draw(st.integers(1, 4))
        shares = draw(st.none() | st.integers(0, 3))
        hosts.append(
            Host(
                name=f"h{number}",
                ssh=f"h{number}",
                address=draw(_addresses),
                task_port=draw(st.integers(1024, 65532)),
                tasks=tasks,
                role=draw(st.sampled_from(Role)),
                devices=None if shares is None else tuple(map(str, range(shares * tasks))),
                spare=number > 0 and draw(st.booleans()),
                env=draw(st.dictionaries(st.sampled_from(["A", "grpc_proxy"]), st.text(max_size=3))),
            )
        )
    return Inventory(tuple(draw(st.permutations(hosts))))


def plans() -> st.SearchStrategy[RunPlan]:
    return inventories().map(lambda inventory: make(*inventory.hosts))
