"""Whole lines for each event, without colour. Pure."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterable
from typing import assert_never

from orchestrator import events as ev
from orchestrator import ranges
from orchestrator.diagnosis.ends import end_after
from orchestrator.events import Event, Phase, StopBy
from orchestrator.planning.takeover import FOLLOWED
from orchestrator.render import fold
from orchestrator.render.errors import block, host_block, problems
from orchestrator.render.summary import summary
from orchestrator.run import peers
from orchestrator.run.view import View
from orchestrator.text import count, duration, plain, size

_BECAUSE = {
    StopBy.USER: "a user asked for it",
    StopBy.FAILURE: "a task failed",
    StopBy.COMPLETION: "the work is done",
}
_UNSAID = {Phase.FOLLOW}  # it lasts as long as the run: its tasks speak for it


def say(view: View, event: Event, *, brief: bool = False) -> list[str]:
    """The lines for an event; `view` is the one after it. Log lines are not ours to word.

    `brief` leaves one line of a run's start, unless it fails, and that nothing of it is started from here.
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
            lines = [] if event.phase in _UNSAID else [f"{event.phase}: {count(event.hosts, 'host')}"]
        case ev.PhaseEnded():
            if event.phase in _UNSAID:
                return []
            staged = _staged(view) if event.phase is Phase.STAGE and event.ok else ""
            how = f"{'ok' if event.ok else 'failed'} after {duration(event.seconds)}"
            validated = _validated(view) if event.phase is Phase.VALIDATE else ()
            return [*validated, *_troubles(view, event), f"{event.phase}: {how}{staged}"]
        case ev.HostLost():
            lines = [f"{event.host}: no word from it ({event.why}); its tasks may well continue"]
        case ev.HostRecovered():
            lines = [f"{event.host}: back after {duration(event.seconds)}"]
        case ev.Stepped():  # those of hosts are too many for a log; the live display draws them
            lines = [f"{_who(view, event.who)}: {event.step}"] if event.who in view.tasks else []
        case ev.ValidationStood():
            lines = [f"{fold.names(event.hosts)}: validated {duration(event.seconds)} ago, unchanged"]
        case ev.TaskStarted(pid=0):
            return []  # it was not, as its end says
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
                return block(peers.words(event), hint=peers.hint(event), word="warning")
            lines = [peers.words(event)]
        case ev.HangPassed():
            lines = [f"the tasks no longer seem to hang, {duration(event.seconds)} later"]
        case ev.AttemptFailed():
            # In short: the whole story is in the logs, and in `status` once no other attempt follows.
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
        case ev.EnvironmentMade():
            lines = [] if event.reused else placed([event])
        case ev.DataPlaced():
            lines = [] if event.reused else placed([event])
        case ev.HostConnected() | ev.HostFailed() | ev.CheckReported() | ev.PairReported() | ev.TreeSynced():
            return []  # said for all hosts at once when their phase ends
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
    """Word what is missing, and where it still is."""
    if event.where is ev.GapPlace.NODE:
        return f"{count(event.count, 'byte')} of its log were lost on the node ({event.why})"
    if event.where is ev.GapPlace.CONTROLLER:
        return f"{size(event.count)} of its log are not here: {event.why}"
    return f"{count(event.count, 'line')} not shown: {event.why}; the log file has all"


def placed(events: Iterable[ev.EnvironmentMade | ev.DataPlaced]) -> list[str]:
    """List what hosts have now, with the versions that were imported there; equal ones share a line."""
    same: dict[tuple[str, str], list[ev.EnvironmentMade | ev.DataPlaced]] = {}
    for event in events:
        same.setdefault(_placed(event), []).append(event)
    lines = []
    for (how, what), alike in same.items():
        least, most = (duration(one(event.seconds for event in alike)) for one in (min, max))
        took = "" if alike[0].reused else f" in {most if least == most else f'{least} to {most}'}"
        lines.append(f"{fold.names(event.host for event in alike)}: {how}{took}{': ' if what else ''}{what}")
    return lines


def _placed(event: ev.EnvironmentMade | ev.DataPlaced) -> tuple[str, str]:
    if isinstance(event, ev.EnvironmentMade):
        versions = ", ".join(f"{name} {version}" for name, version in event.versions.items())
        return "has its environment already" if event.reused else "environment made", versions
    if event.reused:
        return f"has the data already ({size(event.total)})", ""
    ways = [(event.sent, "from here"), (event.peers, "from other hosts")]
    came = ", ".join(f"{size(count)} {where}" for count, where in ways if count) or "all of it was there"
    return "data", came


def _planned(event: ev.RunPlanned, *, brief: bool) -> list[str]:
    hosts = {host for _, host in event.tasks}
    named = f" ({event.name})" if event.name else ""
    command = shlex.join(event.command) or "the built-in training program"
    head = (
        f"run {event.run}{named}: {count(len(event.tasks), 'task')} on {count(len(hosts), 'host')}: {command}"
    )
    return [head, *(f"  note: {note}" for note in event.notes if not brief or note.startswith(FOLLOWED))]


def _troubles(view: View, event: ev.PhaseEnded) -> list[str]:
    """Word what went wrong in a phase, for all hosts at once: checks, and hosts that could not go on.

    Where the phase did well all the same, others have taken their places.
    """
    phase, word = event.phase, "warning" if event.ok else "error"
    checks = [check for host in view.hosts.values() for check in host.checks]
    failed = [host.failed for host in view.hosts.values() if host.failed and host.failed.phase is phase]
    folded = fold.alike((one.host, (one.what, one.why, one.hint)) for one in failed)
    blocks = (host_block(hosts, *texts, word=word) for hosts, texts in folded)
    return [*(problems(checks) if phase is Phase.PREFLIGHT else ()), *itertools.chain.from_iterable(blocks)]


def _staged(view: View) -> str:
    trees = [host.synced for host in view.hosts.values() if host.synced]
    if not trees:
        return ""
    files, sent = max(tree.files for tree in trees), sum(tree.sent for tree in trees)
    return f": {count(files, 'file')}, " + ("nothing to send" if not sent else f"{size(sent)} sent")


def _validated(view: View) -> list[str]:
    """List what trained alone: one line for hosts that did the same, with the slowest of them."""
    same: dict[tuple[str, str, bool], list[ev.HostValidated]] = {}
    for host in view.hosts.values():
        if isinstance(done := host.validated, ev.HostValidated):
            known = done.loss is not None and done.steps_per_second is not None
            same.setdefault((done.dataset, done.note, known), []).append(done)
    lines = []
    for (dataset, note, known), alike in same.items():
        one, how = len(alike) == 1, "passes its validation" if len(alike) == 1 else "pass their validation"
        if known:
            speeds = sorted((done.steps_per_second or 0.0, done.host) for done in alike)
            loss = _span([done.loss or 0.0 for done in alike], "{:.4f}".format)
            speed = _span([speed for speed, _ in speeds], "{:.1f}".format)
            slowest = "" if " to " not in speed else f" ({speeds[0][1]} is the slowest)"
            how = f"train{'s' * one} alone: loss {loss}, {speed} steps/s{slowest} on {dataset}"
        took = _span([done.seconds for done in alike], duration)
        names = fold.names(done.host for done in alike)
        lines.append(f"{names}: {how}, {took}{f', {note}' * bool(note)}")
    return lines


def _span(values: list[float], text: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys(map(text, (min(values), max(values)))))


def _hanging(view: View, event: ev.HangSuspected) -> str:
    who, for_long = ranges.fold(event.tasks), duration(event.seconds)
    if event.kind is ev.HangKind.LAGGING:
        return f"{who}: behind the others, and silent, for {for_long}; taking all stacks"
    run = f" {view.planned.run}" if view.planned else ""
    quiet = event.kind is ev.HangKind.QUIET
    then = f"`orchestrate stacks{run}` shows where they stand" if quiet else "taking their stacks"
    return f"no word from {who} for {for_long}; {then}"


def _stopping(event: ev.StopRequested) -> str:
    patience = f"TERM, then KILL after {duration(event.grace)}" if event.grace else "KILL at once"
    if event.by is StopBy.USER and event.grace:
        patience += "; sooner: Ctrl-C again, or stop --now"
    return f"stopping the tasks: {event.why or _BECAUSE[event.by]} ({patience})"


def _who(view: View, task: str) -> str:
    known = view.tasks.get(task)
    return f"{task} {known.host}" if known and known.host else task
