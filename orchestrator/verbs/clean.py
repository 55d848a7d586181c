"""`clean`: kill leftover processes of ended runs on the hosts, and remove old files."""

from collections.abc import Mapping

from msgspec.structs import astuple

from orchestrator import wire
from orchestrator.errors import ExitStatus, HostError, status_of
from orchestrator.requests import CleanRequest
from orchestrator.store import prune
from orchestrator.value import Value
from orchestrator.verbs import Caller
from orchestrator.verbs.asking import asking

_SECONDS = 1800.0  # for removing many files from a network disk


class Cleaning(Value):
    hosts: Mapping[str, wire.Cleaned]  # a node's reply, by host
    unreachable: Mapping[str, HostError]
    here: prune.Pruned
    alive: frozenset[str]
    work: bool
    dry: bool

    @property
    def remains(self) -> bool:
        """Return True if anything of an ended run remains."""
        return bool(self.here.failed) or any(remains(reply) for reply in self.hosts.values())

    @property
    def status(self) -> ExitStatus:
        if self.unreachable:
            return status_of(self.unreachable.values())
        return ExitStatus.RUN_FAILED if self.remains else ExitStatus.OK


def remains(reply: wire.Cleaned) -> bool:
    """Return True if anything of an ended run remains on a host."""
    failed = any(kind.failed for kind in astuple(reply.folders))
    return bool(reply.orphans or reply.trouble or failed)


def clean(request: CleanRequest, caller: Caller) -> Cleaning:
    """End processes and remove files of ended runs, on the hosts and on this machine."""
    with asking(request.inventory.hosts, caller) as (fleet, unreachable):
        kept = prune.kept()
        looks = fleet.ask(wire.CleanLook())
        silent = unreachable | looks.bad
        alive = kept.union(*(reply.alive for reply in looks.good.values()))
        known_runs = {run for reply in looks.good.values() for run in reply.known}
        questions = {
            name: wire.Clean(
                workdir=session.host.workdir,
                alive=sorted(alive),
                known=sorted(known_runs),
                older=request.older_than,
                shared=not silent,  # a silent host may use code and working folders on a shared disk
                work=request.work,
                dry=request.dry_run,
            )
            for name, session in fleet.sessions.items()
            if name not in silent
        }
        answers = fleet.ask(questions, timeout=_SECONDS)
    here = prune.prune(alive, set(answers.good), older=request.older_than, dry=request.dry_run)
    return Cleaning(answers.good, silent | answers.bad, here, alive, request.work, request.dry_run)
