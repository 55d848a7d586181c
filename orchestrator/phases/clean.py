"""Has every node prove that it holds nothing of ended runs, and remove what is old."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator import wire
from orchestrator.errors import HostError
from orchestrator.fleet import Fleet

_SECONDS = 1800.0  # that removing many files from a network disk may take


@dataclass(frozen=True)
class CleanOptions:
    """Options of `clean`."""

    older: float  # seconds
    work: bool  # working folders too
    dry: bool


def clean(
    fleet: Fleet, unreachable: Mapping[str, HostError], kept: frozenset[str], options: CleanOptions
) -> tuple[dict[str, wire.Cleaned], dict[str, HostError], frozenset[str]]:
    """Clean every node: what each found and removed, why the others did not, and the runs that are alive.

    `kept` are runs with a keeper here. While a host is silent nobody knows what it uses of a folder
    that others see too: code and working folders are left alone then.
    """
    looks = fleet.ask(wire.CleanLook())
    silent = {**unreachable, **looks.bad}
    alive = kept.union(*(reply.alive for reply in looks.good.values()))
    known = {run for reply in looks.good.values() for run in reply.known}
    answers = fleet.ask(
        lambda session: wire.Clean(
            workdir=session.host.workdir,
            alive=sorted(alive),
            known=sorted(known),
            older=options.older,
            shared=not silent,
            work=options.work,
            dry=options.dry,
        ),
        timeout=_SECONDS,
        hosts=[name for name in fleet.sessions if name not in silent],
    )
    return answers.good, {**silent, **answers.bad}, alive
