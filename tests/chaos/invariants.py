"""Invariants after every run, whatever the fault; each returns its violations, one per line."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.chaos.machine import Machine, Process
from tests.ssh.runs.desk import Controller

Event = dict[str, Any]
PATIENCE = 10.0  # seconds within which agents and guards must exit


def check(
    run: str, controller: Controller, machines: Mapping[str, Machine], *, killed: bool, cut: float = 0.0
) -> list[str]:
    """Check all invariants; a `killed` keeper may leave phases open; `cut` is how long a link was cut."""
    events = controller.events(run)
    ended = [event for event in events if event["event"] == "RunEnded"]
    if not ended:
        return ["the run has no end"]
    proven = {name: machine for name, machine in machines.items() if name not in ended[-1]["unproven"]}
    return [
        *nothing_is_left(
            machines, lambda machine: [*machine.left_of(run), *machine.agents()], PATIENCE + cut
        ),
        # Nor any other process started by a login: an rsync, or a Python queried for its version.
        *nothing_is_left(machines, Machine.of_the_user, PATIENCE),
        *logs_are_the_same(run, events, controller, machines, proven),
        *events_fit_the_nodes(run, events, proven),
        *events_are_a_story(events, killed=killed),
        *no_bug_was_met(run, controller, machines, events),
    ]


def nothing_is_left(
    machines: Mapping[str, Machine], look: Callable[[Machine], list[Process]], patience: float
) -> list[str]:
    """No process of the run is on any node, and no agent of its keepers and viewers."""
    deadline = time.monotonic() + patience
    wrong = []
    for name, machine in machines.items():
        while (left := look(machine)) and time.monotonic() < deadline:
            time.sleep(0.05)
        wrong += [f"alive on {name}: {process}" for process in left]
    return wrong


def hosts_were_replaced(events: list[Event], right: tuple[tuple[str, str], ...]) -> list[str]:
    """Hosts were replaced exactly as the fault requires."""
    replacements = tuple((event["host"], event["by"]) for event in events if event["event"] == "HostReplaced")
    return [] if replacements == right else [f"replaced were {replacements}; right is {right}"]


def _tasks(events: list[Event]) -> dict[str, str]:
    """Return task -> host from the latest plan."""
    planned = [event for event in events if event["event"] in ("RunPlanned", "AttemptPlanned")]
    return dict(planned[-1]["tasks"]) if planned else {}


def _last_attempt(events: list[Event]) -> str:
    return str(max((e["attempt"] for e in events if e["event"] == "TaskStarted"), default=""))


def logs_are_the_same(
    run: str,
    events: list[Event],
    controller: Controller,
    machines: Mapping[str, Machine],
    proven: Mapping[str, Machine],
) -> list[str]:
    """Logs match byte by byte; for a host that was unreachable at the end, a prefix suffices."""
    attempt = _last_attempt(events)
    if not attempt:
        return []
    known = {e["task"] for e in events if e["event"] == "TaskExited" and not e["lost"]}
    wrong = []
    for task, host in _tasks(events).items():
        ours = _bytes(controller.run_folder(run) / "logs" / attempt / f"{task.replace('/', '-')}.log")
        theirs = _bytes(machines[host].task_folder(run, attempt, task) / "output.log")
        whole = host in proven and task in known
        if not theirs.startswith(ours) or (whole and ours != theirs):
            same = next(
                (n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
                min(len(ours), len(theirs)),
            )
            wrong.append(
                f"log of {task}: {len(ours)} bytes here, {len(theirs)} on {host}, alike up to {same}"
            )
    return wrong


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def events_fit_the_nodes(run: str, events: list[Event], proven: Mapping[str, Machine]) -> list[str]:
    """Every reported end matches the node's record if the node responds."""
    attempt = _last_attempt(events)
    exits = {e["task"]: e for e in events if e["event"] == "TaskExited" and str(e["attempt"]) == attempt}
    wrong = []
    for task, host in _tasks(events).items():
        if host not in proven or not attempt:
            continue
        facts, reported = proven[host].facts(run, attempt, task), exits.get(task)
        if facts is None:
            if reported is not None and not reported["lost"]:
                wrong.append(f"{task}: reported as {_end(reported)}, but {host} has no record of it")
            continue
        if facts["state"] not in ("exited", "lost", "unstarted"):
            wrong.append(f"{task}: the run is over, and {host} says {facts['state']}")
        there = (facts["exit_code"], facts["exit_signal"], facts["state"] != "exited")
        if reported is not None and _end(reported) != there:
            wrong.append(f"{task}: reported as {_end(reported)}, but {host} has {there}: {reported['lost']}")
    return wrong


def _end(exit_event: Event) -> tuple[int | None, int | None, bool]:
    return exit_event["code"], exit_event["signal"], bool(exit_event["lost"])


def events_are_a_story(events: list[Event], *, killed: bool) -> list[str]:
    """Ends follow starts, once each, and the run's own end comes last."""
    wrong = []
    names = [event["event"] for event in events]
    adopted = names.count("RunAdopted")
    if names.count("RunEnded") != 1 and not adopted:
        wrong.append(f"{names.count('RunEnded')} ends of one run")
    if names[-1] != "RunEnded":
        wrong.append(f"the last event is {names[-1]}")
    started, known, lost = set[str](), dict[tuple[str, str], int](), set[str]()
    for event in events:
        match event["event"]:
            case "TaskStarted":
                started.add(event["task"])
            case "TaskExited":
                if event["task"] not in started and not adopted:
                    wrong.append(f"{event['task']} ended and was never started")
                one = event["task"], event["attempt"]
                known[one] = known.get(one, 0) + (not event["lost"])
            case "HostLost":
                if event["host"] in lost and not killed:
                    wrong.append(f"{event['host']} was lost twice")
                lost.add(event["host"])
            case "HostRecovered":
                if event["host"] not in lost:
                    wrong.append(f"{event['host']} recovered and was not lost")
                lost.discard(event["host"])
            case _:
                pass
    wrong += [f"{task} ended {count} times" for (task, _), count in known.items() if count > 1]
    wrong += _steps_are_those_asked_for(events)
    if not killed and names.count("PhaseStarted") != names.count("PhaseEnded"):
        wrong.append(f"{names.count('PhaseStarted')} phases began, {names.count('PhaseEnded')} ended")
    return wrong


def _steps_are_those_asked_for(events: list[Event]) -> list[str]:
    """Successful training ran the requested steps, however often it was interrupted."""
    command: list[str] = next((event["command"] for event in events if event["event"] == "RunPlanned"), [])
    if events[-1].get("outcome") != "succeeded" or "train.py" not in command:
        return []
    steps = int(command[command.index("--steps") + 1])
    done = {
        event["task"]: event["data"]["steps"]
        for event in events
        if event["event"] == "TaskReported" and event["kind"] == "result"
    }
    # A disk without space for the log has none for the report.
    short = {event["task"] for event in events if event["event"] == "LogGap" and event["where"] == "node"}
    return [
        f"{task} did {done.get(task)} of {steps} steps"
        for task in _tasks(events)
        if done.get(task) != steps and task not in short
    ]


def no_bug_was_met(
    run: str, controller: Controller, machines: Mapping[str, Machine], events: list[Event]
) -> list[str]:
    """Neither controller nor nodes printed a traceback of ours."""
    wrong = []
    debug = (controller.run_folder(run) / "debug.log").read_text(errors="replace")
    if "Traceback" in debug:
        wrong.append(f"debug.log: {debug[debug.index('Traceback') :][-400:]}")
    for task, host in _tasks(events).items():
        crash = machines[host].task_folder(run, _last_attempt(events) or "1", task) / "crash.txt"
        if crash.exists():
            wrong.append(f"{host}: {crash.read_text(errors='replace')[-400:]}")
    return wrong
