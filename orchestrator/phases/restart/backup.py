"""Before another attempt, every host gets the backup of the task that led the last one."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator import ranges, text
from orchestrator.errors import ClusterError
from orchestrator.events import Noted, Phase
from orchestrator.phases.context import PhaseFailed, Run, fail_on
from orchestrator.sync import BackupOrigin, carry
from orchestrator.sync.admit import LEFT_OUT
from orchestrator.sync.files import work_folder


def carry_backup(run: Run, leader: str, backup: str) -> None:
    """Bring the backup of the task that led the last attempt to every host; raise PhaseFailed."""
    works = {
        host.name: work_folder(host.workdir, run.id, run.plan.cwd)
        for host in (run.plan.host(leader), *run.hosts)
    }
    source, going_on = leader, [host.name for host in run.hosts]
    if backup.startswith(("/", "~")):
        # Who sees the same workdir need not see the same folder elsewhere, as a disk of each machine's own.
        # Where they do, each finds that it has the same already.
        paths, shared = dict.fromkeys(works, backup), {}
    else:
        paths, shared = {name: f"{work}/{backup}" for name, work in works.items()}, run.shared
        if _emptied(run, leader):
            source = ""
    try:
        carried = carry(
            run.fleet.sessions, source, paths, run.folder.path / "backup", shared, going_on=going_on
        )
    except ClusterError as error:
        raise PhaseFailed(Phase.STAGE, error.in_one_line, error.hint) from error
    fail_on(run.bus, Phase.STAGE, dict(carried.failed))
    if reached := [name for name, sent in carried.sent.items() if not sent.reused]:
        size = text.size(max(carried.sent[name].bytes for name in reached))
        giver = carried.giver or "this machine"
        run.bus.emit(Noted(f"{backup} ({size}) was copied from {giver} to {ranges.fold(reached)}"))
    if carried.left_out:
        first = text.plain(carried.left_out[0])[:200]
        more = f" and {len(carried.left_out) - 1} more" if carried.left_out[1:] else ""
        run.bus.emit(Noted(f"of {backup} stayed on {carried.giver} ({LEFT_OUT}): {first}{more}"))
    gone = "is lost" if leader not in going_on else "" if source else "has lost its folder"
    match carried.origin:
        case BackupOrigin.COPY:
            said = f"{leader} {gone} with its newest {backup}; every host has that of an attempt before"
        case BackupOrigin.REMOVED:
            said = f"{leader} has removed its {backup}: training starts from the beginning, everywhere"
        case BackupOrigin.NOWHERE if gone:
            said = f"{backup} was only on {leader}, which {gone}: training starts from the beginning"
        case BackupOrigin.NOWHERE:
            said = f"{leader} has no {backup} yet: training starts from the beginning"
        case BackupOrigin.HOST:
            return
    run.bus.emit(Noted(said))


def _emptied(run: Run, leader: str) -> bool:
    """Whether a host that continues had to be given a new working folder: its disk forgot the last one."""
    group = run.shared.get(leader, leader)
    there = leader in run.names
    return there and any(run.shared.get(name, name) == group for name in run.made)


def shared_now(run: Run, now: Mapping[str, str]) -> dict[str, str]:
    """Who sees whose disk by a new look at the hosts, and by the last one of those that are gone."""
    known = dict(now)
    for name, group in run.shared.items():
        if name not in run.names:
            mate = next((other for other in run.names if run.shared.get(other) == group), None)
            if mate is not None:
                known[name] = now.get(mate, mate)
    return known
