"""`launch --continue`: a run starts in the working folders of an earlier one, which must fit its tasks."""

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from orchestrator import ranges, wire
from orchestrator.errors import ClusterError, HostError
from orchestrator.events import Noted, Phase
from orchestrator.model import Resumed, RunPlan
from orchestrator.node.disk.removing import remove
from orchestrator.phases.context import PhaseFailed, Run, fail_on
from orchestrator.planning.commands import is_builtin
from orchestrator.sync.backups import Carried, carry
from orchestrator.sync.files import LEFT_OUT, work_folder
from orchestrator.text import count, plain, size

_SECONDS = 600.0  # for a search in a large folder
_ANEW = "`launch` without --continue starts anew; `orchestrate pull {run}` fetches what there is"


def resume(run: Run, resumed: Resumed, shared: Mapping[str, str]) -> None:
    """Check that the folders fit the tasks, and bring one to hosts that have none; raise PhaseFailed."""
    questions = {
        host.name: wire.WorkLook(workdir=host.workdir, run=resumed.run, user=run.id) for host in run.hosts
    }
    answers = run.fleet.ask(questions, timeout=_SECONDS)
    fail_on(run, Phase.STAGE, answers.bad)
    what, hint = "has live tasks of run {} in this folder", "`orchestrate stop {}`, then again"
    alive = {
        name: HostError(name, what.format(other), kind="alive", hint=hint.format(other))
        for name, reply in answers.good.items()
        for other in reply.alive[:1]
    }
    fail_on(run, Phase.STAGE, alive)
    having = [host.name for host in run.hosts if answers.good[host.name].there]
    # A host that was replaced, and is back, has what was true when it was lost.
    last = {shared.get(name, name) for name in resumed.seats.values()}
    there = [name for name in having if shared.get(name, name) in last] or having
    if not there:
        raise PhaseFailed(
            Phase.STAGE,
            f"no host has the working folder of run {resumed.run} any more",
            "`clean --work` removed it, or the run never started; `launch` without --continue starts anew",
        )
    owned = {name: answers.good[name].owned for name in there if answers.good[name].owned}
    if misfit := _misfit(run.plan, resumed, shared, there, owned):
        raise PhaseFailed(Phase.STAGE, misfit, _ANEW.format(run=resumed.run))
    absent = [host.name for host in run.hosts if host.name not in there]
    giver = resumed.leader if resumed.leader in there else there[0]
    run.plan = replace(run.plan, preparing=replace(run.plan.preparing, leader=giver))
    if giver != resumed.leader:
        gone = f"{resumed.leader}, the first host of run {resumed.run}, no longer has its folder"
        run.emit(Noted(f"{gone}: training continues from what {giver} has"))
    if absent and run.plan.restarts.backup is None:  # only the code, where a backup is copied anyway
        paths = {name: work_folder(run.plan.host(name).workdir, resumed.run) for name in (giver, *absent)}
        copy = run.folder.path / "continued"
        try:
            carried = carry_folder(run, "the folder", giver, paths, copy=copy, shared=shared)
        finally:
            remove(str(copy))
        most = size(max((sent.bytes for sent in carried.sent.values()), default=0))
        run.emit(Noted(f"{ranges.fold(absent)} got the folder of {giver} ({most})"))
    run.emit(Noted(f"continues in the folder of run {resumed.run} on {ranges.fold(there)}"))


def _misfit(
    plan: RunPlan,
    resumed: Resumed,
    shared: Mapping[str, str],
    there: list[str],
    owned: Mapping[str, tuple[str, ...]],
) -> str:
    """Return the reason why the run cannot continue in these folders, or "" if it can."""

    def disk(host: str) -> str:
        return shared.get(host, host)

    now = {str(spec.id): spec.host for spec in plan.tasks}
    moved = {
        task: (host, now[task])
        for task, host in resumed.seats.items()
        if host in there and task in now and disk(now[task]) != disk(host)
    }
    first = str(plan.leader.id)
    if first in moved and plan.restarts.backup is None:
        before, after = moved[first]
        return (
            f"{first} was on {before}, where its checkpoints are, and would be on {after}: give the hosts in"
            " the order of that run, or name the folder of the checkpoints as `backup` under [job]"
        )
    # Tasks of worker_entry agree on a checkpoint that any of them has.
    if is_builtin(plan.command) or not owned or not (moved or resumed.seats.keys() != now.keys()):
        return ""
    change, host = f"there were {count(len(resumed.seats), 'task')} and would be {len(now)}", ""
    if moved:
        task, (host, after) = next(iter(moved.items()))
        change = f"{task} was on {host} and would be on {after}"
    host = host if host in owned else next(iter(owned))
    return f"{host} has files of single tasks ({', '.join(owned[host])}), and {change}"


def carry_folder(
    run: Run, what: str, source: str, paths: Mapping[str, str], *, copy: Path, shared: Mapping[str, str]
) -> Carried:
    """Bring a folder of one host to others, by way of a copy here; raise PhaseFailed."""
    going_on = [host.name for host in run.hosts if host.name in paths]
    try:
        carried = carry(run.fleet.sessions, source, paths, copy, shared, going_on=going_on)
    except ClusterError as error:
        raise PhaseFailed(Phase.STAGE, error.in_one_line, error.hint) from error
    fail_on(run, Phase.STAGE, dict(carried.failed))
    if carried.left_out:
        example = plain(carried.left_out[0])[:200]
        run.emit(Noted(f"{what} on {carried.giver}: {example}, for example, stayed there ({LEFT_OUT})"))
    return carried
