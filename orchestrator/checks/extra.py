"""The ports that NCCL and others take from the kernel: with GPUs, task ports alone are not enough. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.checks.seen import Seen
from orchestrator.events import Check, CheckReported, Level, PairReported
from orchestrator.ranges import fold


def of_extra(pairs: Sequence[PairReported]) -> Iterator[CheckReported]:
    """An `nccl` that fails for each host of which only the task ports are open."""
    for name in dict.fromkeys(pair.target for pair in pairs):
        missed = [pair for pair in pairs if pair.target == name and not pair.tcp]
        if missed:
            who = fold(dict.fromkeys(pair.source for pair in missed))
            why = "NCCL listens on ports that the kernel chooses, beside the task port: training would hang"
            hint = "let the cluster's hosts reach all TCP ports of each other"
            found = f"{who} cannot reach its other ports: {missed[0].why}"
            yield CheckReported(name, Check.NCCL, Level.FAIL, found, why, hint, between=True)


def of_several(seen: Sequence[Seen], interfaces: dict[str, str]) -> Iterator[CheckReported]:
    """A host with GPUs and several networks: NCCL takes the first one that it finds, unless it is told."""
    for one in seen:
        carrier = interfaces.get(one.name)
        names = {
            interface.name
            for interface in one.interfaces
            if ":" not in interface.ip and not interface.name.startswith(("lo", "docker", "br-", "veth"))
        }
        said = one.host.env.get("NCCL_SOCKET_IFNAME")
        if one.facts.gpus and carrier is not None and len(names) > 1 and said is None:
            others = ", ".join(sorted(names - {carrier}))
            why = f"its address is on {carrier}, and NCCL may choose {others}"
            hint = f'set `env = {{ NCCL_SOCKET_IFNAME = "{carrier}" }}` for it in hosts.toml'
            yield one.says(Check.INTERFACE, Level.WARN, f"{len(names)} networks", why, hint)
