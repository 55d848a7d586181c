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


@dataclass(frozen=True)
class KnownRuns:
    """Runs as the nodes know them before anything is touched."""

    alive: frozenset[str]  # on any of them
    known: frozenset[str]
    unreachable: Mapping[str, HostError]


def look(fleet: Fleet, unreachable: Mapping[str, HostError]) -> KnownRuns:
    """Ask all nodes which runs are alive."""
    answers = fleet.ask(wire.CleanLook())
    replies = answers.good.values()
    return KnownRuns(
        alive=frozenset(run for reply in replies for run in reply.alive),
        known=frozenset(run for reply in replies for run in reply.known),
        unreachable={**unreachable, **answers.bad},
    )


def clean(
    fleet: Fleet, seen: KnownRuns, kept: frozenset[str], options: CleanOptions
) -> tuple[dict[str, wire.Cleaned], dict[str, HostError]]:
    """Clean every node; return what each found and removed, and why the others did not.

    `kept` are runs with a keeper here. While a host is silent nobody knows what it uses of a folder
    that others see too: code and working folders are left alone then.
    """
    answers = fleet.ask(
        lambda session: wire.Clean(
            workdir=session.host.workdir,
            alive=sorted(seen.alive | kept),
            known=sorted(seen.known),
            older=options.older,
            shared=not seen.unreachable,
            work=options.work,
            dry=options.dry,
        ),
        timeout=_SECONDS,
        hosts=[name for name in fleet.sessions if name not in seen.unreachable],
    )
    return answers.good, answers.bad
