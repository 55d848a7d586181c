"""Whole lines for each event, without colour. Pure."""

from collections.abc import Iterable
from typing import assert_never

from orchestrator import events as ev
from orchestrator import ranges
from orchestrator.diagnosis.ends import end_after
from orchestrator.events import Event, Phase, StopBy
from orchestrator.planning.takeover import FOLLOWED
from orchestrator.render import fold
from orchestrator.render.errors import block, of_hosts, problems
from orchestrator.render.summary import summary
from orchestrator.run import hang
from orchestrator.run.view import View
from orchestrator.text import count, duration, plain, size

_BECAUSE = {
    StopBy.USER: "a user requested it",
    StopBy.FAILURE: "a task failed",
    StopBy.COMPLETION: "the work is done",
}
_NOT_SHOWN = {Phase.FOLLOW}  # it lasts as long as the run, and its tasks show that


def say(view: View, event: Event, *, brief: bool = False) -> list[str]:
    """Return the lines for an event; `view` is the one after it. Log lines are not formatted here.

    `brief` leaves one line about a run's start, unless it fails, and the notice that nothing is started from
    here.
    """
    if brief and _is_of_a_start(view, event):
        return []
    match event:
        case ev.RunPlanned():
            lines = _planned(event, brief=brief)
        case ev.RunAdopted():
            lines = [f"run {event.run}: now kept by {event.by}"]
        case ev.Noted():
            lines = [f"note: {event.text}"]
        case ev.RunLeft():
            return block(
                f"run {event.run} is not kept from here, and continues as it was", event.why, event.hint
            )
        case ev.PhaseStarted():
            lines = [] if event.phase in _NOT_SHOWN else [f"{event.phase}: {count(event.hosts, 'host')}"]
        case ev.PhaseEnded():
            if event.phase in _NOT_SHOWN:
                return []
            staged = _staged(view) if event.phase is Phase.STAGE and event.ok else ""
            how = f"{'ok' if event.ok else 'failed'} after {duration(event.seconds)}"
            validated = _validated(view) if event.phase is Phase.VALIDATE else ()
            return [*validated, *_troubles(view, event), f"{event.phase}: {how}{staged}"]
        case ev.HostLost():
            tasks = [task for task in view.tasks.values() if task.host == event.host]
            runs = any(task.started is not None and not task.exited for task in tasks)
            lines = [f"{event.host}: no response ({event.why})" + "; its tasks may still be running" * runs]
        case ev.HostRecovered():
            lines = [f"{event.host}: back after {duration(event.seconds)}"]
        case ev.Stepped():  # those of hosts are too many for a log; the live display shows them
            lines = [f"{_who(view, event.who)}: {event.step}"] if event.who in view.tasks else []
        case ev.ValidationStood():
            lines = [f"{fold.names(event.hosts)}: validated {duration(event.seconds)} ago, unchanged"]
        case ev.TaskStarted(pid=0):
            return []  # it did not, as its end shows
        case ev.TaskStarted():
            again = "" if event.attempt in ("", "1") else f", attempt {event.attempt}"
            lines = [f"{event.task} {event.host}: started, pid {event.pid}{again}"]
        case ev.TaskReady():
            lines = [f"{_who(view, event.task)}: ready" + (f", {event.note}" if event.note else "")]
        case ev.LogGap():
            lines = [f"{_who(view, event.task)}: {gap(event)}"]
        case ev.TaskExited():
            because = f" ({event.lost or event.note})" if event.lost or event.note else ""
            lines = [f"{event.task} {event.host}: {end_after(event)}{because}"]
        case ev.HangSuspected():
            lines = [_hanging(view, event)]
        case ev.StacksTaken():
            missing = [f"  no stacks from {fold.names(event.missing)}"] if event.missing else []
            lines = [event.found, *missing, f"  all stacks: {event.file}"]
        case ev.PeersReported():
            if event.apart:
                return block(hang.separate(event), hint=hang.separate_hint(event), word="warning")
            lines = [hang.separate(event)]
        case ev.HangPassed():
            lines = [f"the tasks no longer seem to hang, {duration(event.seconds)} later"]
        case ev.AttemptFailed():
            # Brief: the full error is in the logs, and in `status` once no further attempt follows.
            what = f"attempt {event.attempt} failed: {event.cause}"
            then = f"  restart {event.restart} of {event.most} in {duration(event.pause)}"
            return [*block(what, hint=event.hint, word="warning"), then]
        case ev.HostReplaced():
            then = f"{event.by} takes its place" if event.by else "the others continue without it"
            lines = [f"{event.host}: {event.why}; {then}"]
        case ev.AttemptPlanned():
            hosts = {host for _, host in event.tasks}
            lines = [
                f"attempt {event.attempt}: {count(len(event.tasks), 'task')} on {count(len(hosts), 'host')}"
            ]
        case ev.StopRequested():
            lines = [_stopping(event)]
        case ev.RunEnded():
            return ["", *summary(view)]
        case ev.EnvironmentMade() | ev.DataPlaced():
            lines = [] if event.reused else placed([event])
        case ev.HostConnected() | ev.HostFailed() | ev.CheckReported() | ev.PairReported() | ev.TreeSynced():
            return []  # shown for all hosts at once when their phase ends
        case ev.HostValidated() | ev.HostDescribed() | ev.TaskProgressed() | ev.TaskReported() | ev.LogLine():
            return []
        case _:
            assert_never(event)
    return [plain(line) for line in lines]


def _is_of_a_start(view: View, event: Event) -> bool:
    match event:
        case ev.PhaseEnded(ok=ok):
            return ok
        case ev.Noted():
            return not any(task.started is not None for task in view.tasks.values())
        case ev.PhaseStarted() | ev.HostValidated() | ev.ValidationStood():
            return True
        case ev.EnvironmentMade() | ev.DataPlaced() | ev.TaskStarted() | ev.TaskReady():
            return True
    return False


def gap(event: ev.LogGap) -> str:
    """Return what is missing, and where it still is."""
    if event.where is ev.GapPlace.NODE:
        return f"{count(event.count, 'byte')} of its log were lost on the node ({event.why})"
    if event.where is ev.GapPlace.CONTROLLER:
        return f"{size(event.count)} of its log are not here: {event.why}"
    return f"{count(event.count, 'line')} not shown: {event.why}; the log file has all"


def placed(events: Iterable[ev.EnvironmentMade | ev.DataPlaced]) -> list[str]:
    """Return what hosts have now, with the versions that were imported there; equal ones share a line."""
    same: dict[tuple[str, str], list[ev.EnvironmentMade | ev.DataPlaced]] = {}
    for event in events:
        same.setdefault(_placed(event), []).append(event)
    lines = []
    for (how, what), alike in same.items():
        took = "" if alike[0].reused else f" in {fold.span([event.seconds for event in alike], duration)}"
        lines.append(f"{fold.names(event.host for event in alike)}: {how}{took}{': ' if what else ''}{what}")
    return lines


def _placed(event: ev.EnvironmentMade | ev.DataPlaced) -> tuple[str, str]:
    if isinstance(event, ev.EnvironmentMade):
        versions = ", ".join(f"{name} {version}" for name, version in event.versions.items())
        return "environment already there" if event.reused else "environment created", versions
    if event.reused:
        return f"data already there ({size(event.total)})", ""
    ways = [(event.sent, "from here"), (event.peers, "from other hosts")]
    came = ", ".join(f"{size(count)} {where}" for count, where in ways if count) or "all of it was there"
    return "data", came


def _planned(event: ev.RunPlanned, *, brief: bool) -> list[str]:
    hosts = {host for _, host in event.tasks}
    named = f" ({event.name})" if event.name else ""
    command = fold.command(event.command) or "the built-in training program"
    head = (
        f"run {event.run}{named}: {count(len(event.tasks), 'task')} on {count(len(hosts), 'host')}: {command}"
    )
    return [head, *(f"  note: {note}" for note in event.notes if not brief or note.startswith(FOLLOWED))]


def _troubles(view: View, event: ev.PhaseEnded) -> list[str]:
    """Return the problems of a phase for all hosts at once: checks, and hosts that could not continue.

    If the phase succeeded anyway, other hosts have taken their places.
    """
    phase, word = event.phase, "warning" if event.ok else "error"
    checks = [check for host in view.hosts.values() for check in host.checks]
    failed = [host.failed for host in view.hosts.values() if host.failed and host.failed.phase is phase]
    return [*(problems(checks) if phase is Phase.PREFLIGHT else ()), *of_hosts(failed, word=word)]


def _staged(view: View) -> str:
    trees = [host.synced for host in view.hosts.values() if host.synced]
    if not trees:
        return ""
    files, sent = max(tree.files for tree in trees), sum(tree.sent for tree in trees)
    return f": {count(files, 'file')}, " + ("nothing to send" if not sent else f"{size(sent)} sent")


def _validated(view: View) -> list[str]:
    """Return the validated hosts: one line for hosts with the same result, with the slowest of them."""
    same: dict[tuple[str, str, bool], list[ev.HostValidated]] = {}
    for host in view.hosts.values():
        if isinstance(done := host.validated, ev.HostValidated):
            measured = done.loss is not None and done.steps_per_second is not None
            same.setdefault((done.dataset, done.note, measured), []).append(done)
    lines = []
    for (dataset, note, measured), alike in same.items():
        single, how = len(alike) == 1, "passes validation" if len(alike) == 1 else "pass validation"
        if measured:
            speeds = sorted((done.steps_per_second or 0.0, done.host) for done in alike)
            loss = fold.span([done.loss or 0.0 for done in alike], "{:.4f}".format)
            speed = fold.span([speed for speed, _ in speeds], "{:.1f}".format)
            slowest = "" if " to " not in speed else f" ({speeds[0][1]} is the slowest)"
            how = f"pass{'es' * single} validation: loss {loss}, {speed} steps/s{slowest} on {dataset}"
        took = fold.span([done.seconds for done in alike], duration)
        names = fold.names(done.host for done in alike)
        lines.append(f"{names}: {how}, {took}{f', {note}' * bool(note)}")
    return lines


def _hanging(view: View, event: ev.HangSuspected) -> str:
    who, for_long = ranges.fold(event.tasks), duration(event.seconds)
    if event.kind is ev.HangKind.LAGGING:
        return f"{who}: behind the others, and silent, for {for_long}; taking all stacks"
    run = f" {view.planned.run}" if view.planned else ""
    quiet = event.kind is ev.HangKind.QUIET
    then = f"`orchestrate stacks{run}` shows where they are" if quiet else "taking their stacks"
    return f"no output from {who} for {for_long}; {then}"


def _stopping(event: ev.StopRequested) -> str:
    patience = f"TERM, then KILL after {duration(event.grace)}" if event.grace else "KILL at once"
    if event.by is StopBy.USER and event.grace:
        patience += "; sooner: Ctrl-C again, or stop --now"
    return f"stopping the tasks: {event.why or _BECAUSE[event.by]} ({patience})"


def _who(view: View, task: str) -> str:
    task_view = view.tasks.get(task)
    return f"{task} {task_view.host}" if task_view and task_view.host else task
