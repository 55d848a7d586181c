"""Continuing from the working folders of an earlier run, and from the checkpoints of the first task."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from orchestrator import ranges, wire
from orchestrator.errors import ClusterError, HostError
from orchestrator.events import Noted, Phase
from orchestrator.model import Resumed, Role, RunPlan
from orchestrator.node.disk.removing import remove
from orchestrator.phases.context import PhaseFailed, Run, fail_on
from orchestrator.planning.commands import is_builtin
from orchestrator.sync.backups import BackupOrigin, Carried, carry
from orchestrator.sync.files import LEFT_OUT, admit, work_folder
from orchestrator.text import count, plain, size

_SECONDS = 600.0  # for a search in a large folder
_ANEW = "launch without --continue; `orchestrate pull {run}` fetches the files of the earlier run"

# Files from which programs continue; those in workertemp folders are tf_keras's, of tasks that are not chief.
_CHECKPOINT = re.compile(
    r"^(?!.*workertemp).*(?:(?:^|/)(?:checkpoint|\.metadata)|\.(?:index|ckpt|pth?|h5|keras|safetensors|msgpack))$"
)


def resume(run: Run, resumed: Resumed, shared: Mapping[str, str]) -> None:
    """Check that the folders fit the tasks, and copy one to hosts without; raise PhaseFailed."""
    questions = {
        host.name: wire.WorkLook(workdir=host.workdir, run=resumed.run, user=run.id) for host in run.hosts
    }
    answers = run.fleet.ask(questions, timeout=_SECONDS)
    fail_on(run, Phase.STAGE, answers.bad)
    what, hint = "has live tasks of run {} in this folder", "`orchestrate stop {}`, then launch again"
    alive = {
        name: HostError(name, what.format(other), kind="alive", hint=hint.format(other))
        for name, reply in answers.good.items()
        for other in reply.alive[:1]
    }
    fail_on(run, Phase.STAGE, alive)
    having = [host.name for host in run.hosts if answers.good[host.name].there]
    # The folder of a host that was replaced, and is back, is from before its loss.
    last = {shared.get(name, name) for name in resumed.seats.values()}
    there = [name for name in having if shared.get(name, name) in last] or having
    if not there:
        raise PhaseFailed(
            Phase.STAGE,
            f"no host has the working folder of run {resumed.run} any more",
            "launch without --continue: `clean --work` removed the folder, or the run never started",
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
    if absent and run.plan.restarts.backup is None:  # otherwise the backup is copied later
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
            f"{first} was on {before}, where its checkpoints are, and would be on {after}: list the hosts in"
            " the order of that run, or set `backup` under [job] to the folder of the checkpoints"
        )
    # Tasks of worker_entry agree on one checkpoint, which any of them may have.
    if is_builtin(plan.command) or not owned or not (moved or resumed.seats.keys() != now.keys()):
        return ""
    change, host = f"there were {count(len(resumed.seats), 'task')}, and there would be {len(now)}", ""
    if moved:
        task, (host, after) = next(iter(moved.items()))
        change = f"{task} was on {host} and would be on {after}"
    host = host if host in owned else next(iter(owned))
    return f"{host} has files of single tasks ({', '.join(owned[host])}), but {change}"


def carry_folder(
    run: Run, what: str, source: str, paths: Mapping[str, str], *, copy: Path, shared: Mapping[str, str]
) -> Carried:
    """Copy a folder of one host to others, through this machine; raise PhaseFailed."""
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


def carry_backup(run: Run, leader: str, backup: str) -> None:
    """Copy the backup of the last attempt's first task to every host; raise PhaseFailed."""
    works = {
        host.name: work_folder(host.workdir, run.plan.folder, run.plan.cwd)
        for host in (run.plan.host(leader), *run.hosts)
    }
    source = leader
    if backup.startswith(("/", "~")):
        # Hosts that share the workdir need not share other folders, such as a disk of each machine's own.
        # If they do, each already has the same files.
        paths, shared = dict.fromkeys(works, backup), {}
    else:
        paths, shared = {name: f"{work}/{backup}" for name, work in works.items()}, run.staged.shared
        if _emptied(run, leader):
            source = ""
    carried = carry_folder(run, backup, source, paths, copy=run.folder.path / "backup", shared=shared)
    if reached := [name for name, sent in carried.sent.items() if not sent.reused]:
        most = size(max(carried.sent[name].bytes for name in reached))
        giver = carried.giver or "this machine"
        run.emit(Noted(f"{backup} ({most}) was copied from {giver} to {ranges.fold(reached)}"))
    match carried.origin:
        case BackupOrigin.COPY:
            note = f"the newest {backup} is lost with {leader}; every host has an earlier attempt's"
        case BackupOrigin.REMOVED:
            note = f"{leader} has removed its {backup}: training starts from the beginning, everywhere"
        case BackupOrigin.NOWHERE:
            note = f"no {backup} of {leader} is available: training starts from the beginning"
        case BackupOrigin.HOST:
            return
    run.emit(Noted(note))


def note_lone_checkpoint(run: Run, leader: str, joined: Sequence[str]) -> None:
    """Note a checkpoint of the first task that another host lacks, or that is lost with its host.

    Nothing else reports it: tasks without the checkpoint begin anew, and succeed.
    """
    trainers = [spec.host for spec in run.plan.tasks if spec.id.role in (Role.CHIEF, Role.WORKER)]
    stayed = sorted({*trainers}.difference(joined), key=lambda name: (name != leader, trainers.index(name)))
    pair = [*stayed[:1], *joined, *stayed[1:]][:2]
    with_ps = any(spec.id.role is Role.PS for spec in run.plan.tasks)
    if not stayed or with_ps or is_builtin(run.plan.command):
        return
    questions = {
        name: wire.FilesList(path=work_folder(run.plan.host(name).workdir, run.plan.folder, run.plan.cwd))
        for name in pair
    }
    answers = run.fleet.ask(questions)
    try:
        checkpoints = [_checkpoints(name, answers.good[name]) for name in questions]
    except (KeyError, HostError):
        return
    mine, others = checkpoints[0], checkpoints[-1]
    if leader not in run.names and not mine:
        what = f"if only {leader} had saved a checkpoint, it is lost: set `backup` under [job] to its folder"
        run.emit(Noted(f"{what} (docs/restarts.md); {pair[0]} has none in the run's folder"))
    if (lone := mine.keys() - others.keys()) and not others.keys() - mine.keys():
        path = mine[min(lone)]
        advice = "if each task loads it, they continue from different weights; set `backup` to its folder"
        if path.endswith("/.metadata"):  # of torch.distributed.checkpoint
            advice = (
                "each task reads the parts that all have written; save to a folder that all machines share"
            )
        run.staged.lone = f"{path} is on {pair[0]}, but not on {pair[1]}: {advice} (docs/restarts.md)"
        run.emit(Noted(run.staged.lone))


def _checkpoints(host: str, listed: wire.Listed) -> dict[str, str]:
    """Return the folders with checkpoints, each with one of them; raise HostError for a false listing."""
    entries, _ = admit(host, listed.payload, listed.kind)
    return {path.rpartition("/")[0]: path for path, *_ in entries if _CHECKPOINT.search(path)}


def _emptied(run: Run, leader: str) -> bool:
    """Return True if a continuing host got a new working folder: its disk lost the last one."""
    shared = run.staged.shared
    group = shared.get(leader, leader)
    return leader in run.names and any(shared.get(name, name) == group for name in run.staged.made)
