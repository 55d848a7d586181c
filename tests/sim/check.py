"""The checker: invariants of every history."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from orchestrator import events as ev
from orchestrator.diagnosis.ends import essential, failed
from orchestrator.model import OnHang, Role, TaskId
from orchestrator.node.task import state
from orchestrator.timings import DEFAULT
from tests.sim.node import RESTARTED

if TYPE_CHECKING:
    from tests.sim.node import Node, Task
    from tests.sim.world import World

E = TypeVar("E")
_HARMLESS = {"split-frames", "clock-offset", "task-bursts", "task-ignores-term", "slow-connect"}
# Faults that a run survives: broken connections to hosts that are reachable again at once.
_SURVIVED = {"cut", "cut-all", "cut-before-reply", "agent-dies", "agent-lingers"}
# Faults that do not delay a stop: every host responds, and every task ends when it is killed.
_PROMPT = {"stop", "kill", "stop-then-kill", "stop-in-a-pause"}
_PROMPT |= {"task-fails", "task-fails-early", "task-killed", "start-refused"}
_ABSENT = {"connect-refused", "connect-no-route", "connect-time-out"}
_KILLED = {f"keeper-killed{when}" for when in ("", "-again", "-in-a-write", "-at-a-stop")}


def _tasks(world: World) -> list[Task]:
    return [task for node in world.nodes.values() for task in node.tasks]


def _events(world: World, kind: type[E]) -> list[E]:
    return [one.event for _, _, one in world.history.events if isinstance(one.event, kind)]


def _hard(world: World, name: str) -> bool:
    """Return whether a task on that host cannot be ended at once."""
    return any(task.node.name == name and task.conduct.on_kill >= 1.0 for task in _tasks(world))


def start(world: World, new: Task) -> None:
    """Check a program's start: no task of another attempt may be alive, and none may start twice."""
    placed: set[str] = set()
    for _, _, stamped in world.history.events:
        if isinstance(stamped.event, ev.RunPlanned | ev.AttemptPlanned):
            placed = {host for _, host in stamped.event.tasks}
    if world.now < new.node.busy_until:
        world.problem(f"{new.name} starts on {new.node.name}, where its port is in use")
    for task in _tasks(world):
        if task is not new and task.alive and task.node.name in placed and task.attempt != new.attempt:
            world.problem(
                f"two attempts at a time: {new.name} of attempt {new.attempt} starts on {new.node.name} while"
                f" {task.name} of attempt {task.attempt} runs on {task.node.name}"
            )
        if task is not new and task.name == new.name and task.attempt == new.attempt:
            world.problem(f"{new.name} of attempt {new.attempt} starts twice")


def back(world: World, node: Node, planned: int, since: float) -> None:
    """Check a host some time after its return: tasks of attempts before the `planned` one must have ended."""
    for task in node.tasks if node.answers_since(since) and not _hard(world, node.name) else ():
        if task.alive and int(task.attempt) < planned:
            world.problem(f"{task.name} of attempt {task.attempt} is alive on {node.name}, which is back")


def end(world: World, ended: ev.RunEnded) -> None:
    """Check the run's end: it must be truthful about live tasks and about the cause."""
    since = world.now - (90.0 if {"late-reply", "lost-reply"} & set(world.history.hits) else 30.0)
    for task in _tasks(world):
        if task.alive and task.node.name not in ended.unproven:
            world.problem(
                f"{task.name} of attempt {task.attempt} is alive on {task.node.name}, not in `unproven`"
            )
        elif task.alive and not _hard(world, task.node.name) and task.node.answers_since(since):
            world.problem(f"{task.name} is alive on {task.node.name}, which responds")
    for name in ended.unproven if not {"late-reply", "lost-reply"} & set(world.history.hits) else ():
        lost = sum(one.host == name for one in _events(world, ev.HostLost))
        back = sum(one.host == name for one in _events(world, ev.HostRecovered))
        seconds = 0.0 if back and back == lost else 60.0
        if world.nodes[name].answers_since(world.now - seconds) and not _hard(world, name):
            world.problem(f"{name} is in `unproven` although it responds")
    kept = any(one.agent is None for node in world.nodes.values() for one in node.standbys)
    if kept and not world.plan.keep_warm:
        world.problem("standbys remain although the run has no keep_warm")
    history = world.history
    if ended.kind is ev.FailureKind.BUG or ended.status == 4:
        world.problem("a bug ended the run")
    before = [one.event for _, _, one in history.events[:-1] if isinstance(one.event, ev.RunEnded)]
    if before and not before[-1].unproven:
        world.problem("the run ended twice")
    if before:  # the same end, reported again for the remaining hosts
        if (before[0].outcome, before[0].cause) != (ended.outcome, ended.cause):
            world.problem(f"the run ended as {before[0].outcome}, then as {ended.outcome}")
        return
    if ended.attempts > world.plan.restarts.most + 1:
        world.problem(f"{ended.attempts} attempts, more than {world.plan.restarts.most + 1}")
    asked = history.asked
    if ended.outcome is ev.Outcome.STOPPED and asked is None:
        world.problem("the run was stopped without a request")
    exits = [one for one in _events(world, ev.TaskExited) if one.attempt == str(ended.attempts)]
    essentials = {
        str(name) for name in essential([task.id for task in world.plan.tasks], world.plan.completion)
    }
    match ended.outcome:
        case ev.Outcome.SUCCEEDED:
            _succeeded(world, ended)
        case ev.Outcome.STOPPED:
            # The end of a task decides nothing while others are still being started.
            follows = any(one.phase is ev.Phase.FOLLOW for one in _events(world, ev.PhaseStarted))
            first = min((one.at for _, _, one in history.events if _is_stop_of_user(one.event)), default=0.0)
            done = {one.task for one in exits if one.code == 0 and not one.stopped and one.ended < first}
            if follows and essentials <= done and not any(one.lost for one in exits):
                world.problem("the run counts as stopped although all tasks had finished")
        case ev.Outcome.FAILED | ev.Outcome.CLUSTER:
            _after_a_stop(world, exits)
            early = ended.cause.startswith(("connect: ", "stage: "))  # phases that a lost host ends
            survived = set() if early or "slow-connect" in history.hits else _SURVIVED
            if not set(history.hits) - _HARMLESS - survived:
                world.problem(f"the run failed without a cause: {ended.cause}")
    if ended.cause_task and ended.kind is not ev.FailureKind.HOST_LOST:  # the task may have outlived its host
        known = [task for task in _tasks(world) if task.name == ended.cause_task]
        if known and all(task.state["exit_code"] == 0 and not task.state["gaps"] for task in known):
            world.problem(
                f"{ended.cause_task} is the cause, but exited with 0 in every attempt: {ended.cause}"
            )


def _after_a_stop(world: World, exits: list[ev.TaskExited]) -> None:
    """Check that a stop request did not make the run fail: tasks may fail because their peers are stopped."""
    stops = [
        stamped.at
        for _, _, stamped in world.history.events
        if isinstance(stamped.event, ev.StopRequested) and stamped.event.by is ev.StopBy.USER
    ]
    bad = [one.ended for one in exits if failed(one) and not one.lost]
    if stops and bad and min(bad) > stops[0] and not {"clock-jumps", "slow-host"} & set(world.history.hits):
        world.problem("the run failed because of what followed a stop")


def _succeeded(world: World, ended: ev.RunEnded) -> None:
    last = str(ended.attempts)
    found = {TaskId.parse(task.name): task for task in _tasks(world) if task.attempt == last}
    if not found:
        world.problem("the run succeeded, but no task of the last attempt was started")
        return
    for name in essential(list(found), world.plan.completion):
        if found[name].state["exit_code"] != 0:
            world.problem(f"the run succeeded, but {name} ended as {found[name].state}")
    needed = {str(name) for name in essential(list(found), world.plan.completion)}
    events = [(at, stamped.event) for _, at, stamped in world.history.events]
    stops = [
        at for at, event in events if isinstance(event, ev.StopRequested) and event.by is ev.StopBy.COMPLETION
    ]
    exits = [at for at, event in events if isinstance(event, ev.TaskExited) and event.task in needed]
    had = stops[-1] - max(exits) if stops and exits else math.inf
    left = [task for name, task in found.items() if name.role is Role.EVALUATOR and task.state["exit_signal"]]
    if left and had < world.plan.evaluator_timeout - 1.0:
        world.problem(f"the evaluator was stopped {had:.1f} s after the last trainer")
    late = world.now - max(exits, default=world.now)
    if (
        late > world.plan.evaluator_timeout + world.plan.grace + 10.0
        and not set(world.history.hits) - _HARMLESS
    ):
        world.problem(f"the run went on for {late:.1f} s after its last trainer")


def whole(world: World) -> None:
    """Check the history as a whole."""
    events = [(at, stamped.event) for _, at, stamped in world.history.events]
    ends = [(at, event) for at, event in events if isinstance(event, ev.RunEnded)]
    unknown: set[tuple[str, str]] = set()  # it is unknown whether they started
    starts: Counter[tuple[str, str]] = Counter()
    exits: dict[tuple[str, str], list[ev.TaskExited]] = {}
    gaps: set[str] = set()
    where: dict[tuple[str, str], str] = {}
    away: dict[str, float] = {}  # since when
    failed_at = 0.0
    waits = min(DEFAULT.host_return, world.plan.restarts.host_timeout)
    for at, event in events:
        match event:
            case ev.HostLost(host=host):
                away.setdefault(host, at)
            case ev.HostRecovered(host=host) | ev.HostConnected(host=host):  # reconnected by a later keeper
                away.pop(host, None)
            case ev.HostReplaced(host=host) if at - away.get(host, -math.inf) < waits and starts:
                world.problem(f"{host} was replaced after only {at - away[host]:.1f} s")
            case ev.HangSuspected() if any(where[key] in away for key in starts.keys() - exits.keys()):
                world.problem("a hang was reported while a host was lost")
            case ev.TaskStarted(task=task, attempt=attempt, host=host, pid=pid):
                starts[attempt, task] += 1
                where[attempt, task] = host
                if not pid:
                    unknown.add((attempt, task))
            case ev.TaskExited(task=task, attempt=attempt):
                exits.setdefault((attempt, task), []).append(event)
            case ev.AttemptFailed(cause=cause) | ev.RunEnded(cause=cause) if "another keeper" in cause:
                world.problem(f"no other keeper exists: {cause}")
            case ev.AttemptFailed(cause=cause) | ev.RunEnded(cause=cause) if "uses task port" in cause:
                if at - failed_at < DEFAULT.release:
                    world.problem(f"a port in use ended the attempt after {at - failed_at:.1f} s")
            case ev.RunEnded(outcome=ev.Outcome.FAILED, given_up="") if world.plan.restarts.most:
                world.problem("no other attempt follows, for no reason")
            case ev.RunEnded(kind=ev.FailureKind.HANG, given_up=given_up) if world.plan.restarts.most:
                if (given_up == "on_hang ends the run") is (world.plan.on_hang is OnHang.RESTART):
                    world.problem(f"on_hang is {world.plan.on_hang}, but after a hang: {given_up!r}")
            case ev.AttemptFailed(kind=ev.FailureKind.HANG) if world.plan.on_hang is not OnHang.RESTART:
                world.problem(f"on_hang is {world.plan.on_hang}, but another attempt follows a hang")
            case ev.LogGap(task=task, where=ev.GapPlace.CONTROLLER | ev.GapPlace.NODE):
                gaps.add(task)
        if isinstance(event, ev.AttemptFailed):
            failed_at = at
            if str(event.restart) != event.attempt:
                world.problem(f"restart {event.restart} follows attempt {event.attempt}")
    if (
        not starts
        and world.plan.restarts.most
        and len(world.plan.spares) >= 1
        and set(world.history.hits) <= _ABSENT
    ):
        world.problem(f"no spare replaced a host that was away at the launch: {[event for _, event in ends]}")
    for key, count in starts.items():
        if count > 1:
            world.problem(f"{key} was started {count} times")
        reported = exits.get(key, [])
        known = [one for one in reported if not one.lost]
        if len(known) > 1 or len(reported) > world.history.keepers:
            world.problem(f"{key} ended {len(reported)} times: {reported}")
        if not reported and ends and world.history.keepers == 1:
            world.problem(f"{key} was started, but its end was not reported")
        found = world.nodes[where[key]].runs.get(world.plan.run, {}).get(key)
        if found is None:
            if key not in unknown:
                world.problem(f"{key} was started, but {where[key]} has no record of it")
            continue
        _bytes(world, found, complete=bool(known) and found.name not in gaps)
        is_so = found.state["exit_code"], found.state["exit_signal"]
        for one in known:
            if found.final and (one.code, one.signal) != is_so:
                world.problem(f"{key} was reported to end with {one.code}, {one.signal}: {found.state}")
        for one in reported:
            restarted = one.lost in ("", RESTARTED) and found.state["restarted"]
            if (one.loss is ev.Loss.RESTARTED) is not restarted:
                world.problem(f"{key} was lost, {one.lost}, but its event says {one.loss!r}")
    for key in exits.keys() - starts.keys():
        if not any(one.lost for one in exits[key]):
            world.problem(f"{key} ended, but its start was not reported")
    _stopped(world, ends)


def _bytes(world: World, task: Task, *, complete: bool) -> None:
    path = world.folder.log(task.attempt, task.name)
    here = path.read_bytes() if path.exists() else b""
    if bytes(task.log[: len(here)]) != here:
        world.problem(f"the log of {task.name} differs from its node's: a byte is missing or duplicated")
    elif complete and len(here) != len(task.log):
        world.problem(
            f"{len(here)} of {len(task.log)} bytes of the log of {task.name} arrived, without a reported gap"
        )


def _is_stop_of_user(event: object) -> bool:
    return isinstance(event, ev.StopRequested) and event.by is ev.StopBy.USER


def _stopped(world: World, ends: list[tuple[float, ev.RunEnded]]) -> None:
    """Check that a user's stop request takes effect soon."""
    asked = world.history.asked
    if asked is None:
        return
    for _, at, stamped in world.history.events:
        if isinstance(stamped.event, ev.RunEnded) and at <= asked:
            return
    patience = world.plan.grace + 200.0
    # The nodes cannot notify a keeper that waits for another one's reply, for up to the time of the longest
    # request of staging; and those that have the request may be gone afterwards.
    hits = set(world.history.hits)
    if "stopped-elsewhere" in hits and ("lost-reply" in hits or {"late-reply", "gone-for-good"} <= hits):
        patience += 600.0
    if not hits - _HARMLESS - _PROMPT | {"slow-connect"} & hits:
        stops = {"stop", "kill", "stop-then-kill"} & hits
        kills = stops and "stop" not in stops  # at most 5 s after the stop
        patience = (min(5.0, world.plan.grace) if kills else world.plan.grace) + 5.0
    if hits <= {"stop", "controller-disk-full"}:  # the logs need not arrive
        patience = max(DEFAULT.catch_up, world.plan.grace) + 10.0
    first = ends[0][0] if ends else None
    if world.history.keepers == 1 and (first is None or first - asked > patience):
        recorded = any(isinstance(one.event, ev.StopRequested) for _, _, one in world.history.events)
        world.problem(
            f"a stop was requested at {asked:.1f}, but the run ended at {first} (recorded: {recorded})"
        )
    # A stop that one keeper has recorded is carried out by the next one.
    recorded_at = [at for _, at, one in world.history.events if _is_stop_of_user(one.event)][:1]
    recorded_at += [at for _, at, one in world.history.events if isinstance(one.event, ev.RunAdopted)] * len(
        recorded_at
    )
    quiet = not hits - _HARMLESS - _PROMPT - _KILLED
    if quiet and recorded_at and first is not None and first - max(recorded_at) > world.plan.grace + 5.0:
        world.problem(f"a stop was recorded at {recorded_at[0]:.1f}, but the run ended at {first:.1f}")
    late = (task for task in _tasks(world) if task.began > asked + 90.0)
    later = [task for task in late if task.state["state"] != state.UNSTARTED]
    if later and world.history.keepers == 1:
        world.problem(f"{later[0].name} of attempt {later[0].attempt} started after the stop")
