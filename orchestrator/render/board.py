"""The tasks of a run as a table that fits the screen, and the lower part of a live display. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from orchestrator import ranges
from orchestrator.diagnosis.ends import end_after, failed
from orchestrator.events import HangKind, HangSuspected, Phase
from orchestrator.names import is_validation
from orchestrator.ranges import grouped
from orchestrator.render import fold
from orchestrator.render.grid import shortened, table, wrapped
from orchestrator.run import hang
from orchestrator.run.fitlines import Fit
from orchestrator.run.view import HostState, HostView, TaskState, TaskView, View, Vital, Vitals
from orchestrator.text import count, duration, plain, size

Row: TypeAlias = tuple[str, str]  # a line and the name of its style

_RULE = "\u2500"
_BAR = 24  # cells
QUIET = 30.0  # seconds without output after which a task is highlighted

_NUMBERS = ("attempt", "epoch", "step", "loss", "steps/s", "silent", "CPU", "memory", "GPU")
_COLUMNS = ("task", "host", "state", *_NUMBERS)
_LEAST_FIRST = ("memory", "host", "CPU", "GPU", "steps/s", "attempt", "silent", "epoch", "loss")


def task_table(tasks: Sequence[Mapping[str, str]], width: int | None) -> list[str]:
    """Return a row for each task with its cells by column; "" holds text instead of numbers."""
    rows = [[task.get(name, "") for name in _COLUMNS] for task in tasks]
    title, *lines = table(_COLUMNS, rows, width, _LEAST_FIRST, _NUMBERS) if rows else [""]
    for place, text in enumerate(plain(task.get("", "")) for task in tasks):
        room = len(text) if width is None else width - len(lines[place]) - 2
        lines[place] = f"{lines[place]}  {shortened(text, room)}".rstrip()
    return [title, *lines]


def board(view: View, vitals: Vitals, now: float, height: int, width: int) -> list[Row]:
    """Return the tasks, those in trouble first, in at most `height` rows of `width` cells with titles."""
    rated = [
        (task, state_of(view, task, vital), vital)
        for task in view.tasks.values()
        for vital in [vitals.tasks.get(task.task)]
    ]
    styles = [_style(*row, now) for row in rated]
    places = list(range(len(rated)))
    if len(rated) >= height:
        places = sorted(places, key=lambda place: ("red", "yellow", "", "green", "dim").index(styles[place]))
    shown = places[: max(0, height - (2 if len(rated) >= height else 1))]
    title, *lines = task_table([_cells(view, *rated[place], now) for place in shown], width)
    rows = [(title, "dim"), *((line, styles[place]) for line, place in zip(lines, shown, strict=False))]
    if more := Counter(str(rated[place][1]) for place in places[len(shown) :]):
        states = ", ".join(f"{number} {state}" for state, number in more.items())
        rows.append((f"and {count(more.total(), 'more task')}: {states}", "dim"))
    return rows[:height]


def state_of(view: View, task: TaskView, vital: Vital | None) -> TaskState:
    """Return a task's state, including what its own output shows."""
    state = view.state(task)
    if state in (TaskState.STARTED, TaskState.READY) and vital is not None and vital.fit is not None:
        return TaskState.TRAINING
    return state


def _style(task: TaskView, state: TaskState, vital: Vital | None, now: float) -> str:
    if task.exited:
        return "red" if failed(task.exited) else "dim"
    if state is TaskState.UNKNOWN or (vital and now - vital.heard > QUIET):
        return "yellow"
    return "green" if state is TaskState.TRAINING else ""


def _cells(view: View, task: TaskView, state: TaskState, vital: Vital | None, now: float) -> dict[str, str]:
    named = {"task": task.task, "host": task.host, "state": str(state)}
    if task.exited:
        return {**named, "": end_after(task.exited)}
    if state is TaskState.UNKNOWN:
        host = view.hosts[task.host]
        return {**named, "": f"no response for {duration(now - host.since)} ({host.why})"}
    note = task.ready if state is TaskState.READY and task.ready else ""
    return {**named, **numbers(facts(task, vital), now), "attempt": later(task.attempt), "": note}


def later(attempt: str) -> str:
    """Return the attempt's name, unless it is the first."""
    return "" if attempt == "1" else attempt


def facts(task: TaskView | None, vital: Vital | None) -> dict[str, Any]:
    """Return a task's progress (from Keras' output if it does not report) and resource use; None: unknown."""
    fit = vital.fit if vital and vital.fit else Fit()
    reports = task if task and task.step is not None and fit.step is None else None
    return {
        "epoch": fit.epoch,
        "epochs": fit.epochs,
        "step": reports.step if reports else fit.step,
        "steps": None if reports else fit.steps,
        "loss": reports.loss if reports else fit.loss,
        "diverged": "" if reports else fit.diverged,
        "steps_per_second": reports.steps_per_second if reports else fit.steps_per_second,
        "heard": vital.heard if vital else None,
        "cpu": vital.cpu if vital else None,
        "memory": vital.memory if vital else None,
        "gpu_memory": vital.gpu_memory if vital else None,
        "gpu_busy": vital.gpu_busy if vital else None,
    }


def numbers(values: Mapping[str, Any], now: float) -> dict[str, str]:
    """Return `facts` as text by column."""
    silence = None if values["heard"] is None else max(0.0, now - values["heard"])
    loss, rate, busy = values["loss"], values["steps_per_second"], values["gpu_busy"]
    gpu = ("" if busy is None else f"{busy} %", _size(values["gpu_memory"]))
    small = loss is not None and (loss == 0 or 0.001 <= abs(loss) < 1e6)
    return {
        "epoch": _part(values["epoch"], values["epochs"]),
        "step": _part(values["step"], values["steps"]),
        "loss": values["diverged"] or ("" if loss is None else f"{loss:.4f}" if small else f"{loss:.3e}"),
        "steps/s": "" if rate is None else f"{rate:.1f}" if rate >= 0.095 else f"{rate:.3f}",
        # In whole seconds, so that it does not draw attention.
        "silent": "" if silence is None else f"{int(silence)} s" if silence < 9.95 else duration(silence),
        "CPU": "" if values["cpu"] is None else f"{100 * values['cpu']:.0f} %",
        "memory": _size(values["memory"]),
        "GPU": " ".join(filter(None, gpu)),
    }


def _size(number: int | None) -> str:
    return "" if number is None else size(number)


def _part(number: int | None, of: int | None) -> str:
    """`12/20`, `1,240`."""
    return "" if number is None else f"{number:,}" if of is None else f"{number:,}/{of:,}"


# --- the lower part of a live display ---

_DONE: dict[Phase, Callable[[HostView], bool]] = {
    Phase.CONNECT: lambda host: host.state is not HostState.WAITING,
    Phase.SETUP: lambda host: host.made,
    Phase.DATA: lambda host: host.placed,
    Phase.PREFLIGHT: lambda host: bool(host.checks),
    Phase.STAGE: lambda host: host.synced is not None,
    Phase.VALIDATE: lambda host: host.validated is not None,
}


def region(view: View, now: float, height: int, width: int, vitals: Vitals = Vitals()) -> list[Row]:  # noqa: B008
    """Return at most `height` rows of `width` cells; none once the run has ended and its summary follows."""
    if view.ended or not (view.planned or view.phases):
        return []
    started = any(task.started is not None for task in view.tasks.values())
    if started:
        vitals = vitals.of({task.attempt for task in view.tasks.values()})
    elif not is_validation(vitals.attempt):
        vitals = Vitals()
    run = f"run {view.planned.name or view.planned.run} " if view.planned else ""
    rows = [(f"{_RULE * 2} {run}{_doing(view, now)} ".ljust(width, _RULE)[:width], "dim")]
    rows += [(line, "yellow") for line in wrapped(_troubles(view, now, vitals), width)]
    if not started:
        rows += [(line, "") for line in wrapped(_phase(view, now), width)]
    elif (room := height - len(rows)) > 0:
        rows += board(view, vitals, now, room, width)
    return [(plain(text), style) for text, style in rows[:height]]


def _doing(view: View, now: float) -> str:
    phase = view.phase
    running = sum(not task.exited for task in view.tasks.values())
    if view.stop and running:
        return f"stopping, {_since(now - view.stop_asked)}"
    if phase is None:
        return duration(now - view.began)
    if phase.phase in _DONE:
        return f"{doing(phase.phase)}, {_since(now - phase.started)}"
    tasks = count(running, "task") if running == len(view.tasks) else f"{running} of {len(view.tasks)} tasks"
    return f"{doing(phase.phase)}: {tasks}, {_since(now - phase.started)}"


def doing(phase: Phase) -> str:
    """Return a phase as a state of the run: internally tasks are followed, for users they run."""
    return "running" if phase is Phase.FOLLOW else str(phase)


def _since(seconds: float) -> str:
    """Return the duration of a phase in whole seconds, so that it does not draw attention."""
    return duration(max(10.0, seconds)) if seconds >= 9.95 else f"{max(0, int(seconds))} s"


def _troubles(view: View, now: float, vitals: Vitals) -> list[str]:
    """Return what the run waits for, and possible problems."""
    running = [task for task in view.tasks.values() if task.started is not None and not task.exited]
    if view.stop and running:
        until = view.stop_asked + view.stop.grace - now
        how = f"KILL in {math.ceil(until)} s" if until > 0 else "waiting for KILL"
        sooner = "; sooner: Ctrl-C again, or stop --now" if until > 0 else ""
        return [f"waiting for {ranges.fold(task.task for task in running)}: {how}{sooner}"]
    if view.apart:
        return [f"warning: {hang.separate(view.apart)}"]
    if view.hang:
        seconds = vitals.quiet(now) if vitals.tasks else now - view.hang_since
        return [hanging(view.hang, seconds, view.planned.run if view.planned else "RUN")]
    return []


def hanging(hang: HangSuspected, seconds: float = 0.0, run: str = "RUN") -> str:
    """Return the hang warning, until a task produces output again."""
    if hang.kind is HangKind.QUIET:
        for_long = duration(max(seconds, hang.seconds))
        return f"no output from any task for {for_long}; `orchestrate stacks {run}` shows where they are"
    how = "behind" if hang.kind is HangKind.LAGGING else "silent"
    return f"{how}, perhaps hanging: {ranges.fold(hang.tasks)}"


def _phase(view: View, now: float) -> list[str]:
    """Return the current phase with a bar, and the hosts it waits for."""
    phase = view.phase
    if phase is None or phase.phase not in _DONE:
        return []
    done = _DONE[phase.phase]
    waiting = [
        host.name for host in view.hosts.values() if not done(host) and host.state is not HostState.FAILED
    ]
    share = 1 - len(waiting) / max(1, phase.hosts)
    text = f"{phase.hosts - len(waiting)} of {count(phase.hosts, 'host')}"
    moved = [step for step in view.steps.values() if step.unit == "bytes"]
    if bytes_ := sum(step.total for step in moved):
        came = sum(step.done for step in moved)
        rate = came / max(1.0, now - phase.started)
        remaining = f"  {_since((bytes_ - came) / rate)} left" if rate > 0 and bytes_ > came else ""
        share, text = came / bytes_, f"{size(came)} of {size(bytes_)}  {size(rate)}/s{remaining}"
    full = round(max(0.0, min(1.0, share)) * _BAR)
    bar = f"{phase.phase:<9} [{'=' * full}{' ' * (_BAR - full)}]  {text}"
    who = _at_what(view, waiting)
    return [bar, *([f"  {who}"] if who and waiting else [])]


def _at_what(view: View, waiting: list[str]) -> str:
    """Return `gpu-02: unpack; gpu-[03-04]: starts`, or `waiting for gpu-[02-04]`."""
    words = {who: step.step for who, step in view.steps.items() if who}
    if (here := view.steps.get("")) and here.step:
        return f"this machine {here.step}"
    if not any(words.get(host) for host in waiting):
        return f"waiting for {fold.names(waiting)}" if len(waiting) < len(view.hosts) else ""
    steps = grouped((words.get(host) or "starts", host) for host in waiting)
    return "; ".join(f"{fold.names(hosts)}: {step}" for step, hosts in steps.items())
