"""Signs of trouble in running tasks: hangs, and tasks that train separately. Pure."""

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from orchestrator import ranges
from orchestrator.events import HangKind, HangSuspected, PeersReported
from orchestrator.model import Completion, Role, TaskId
from orchestrator.value import Value
from orchestrator.wire import Peers

_UNUSUAL = 3.0  # times the longest pause between two of the task's steps


class Life(Value):
    """One task's signs of life; times are those of a monotonic clock."""

    last_output: float  # its last output or report, or its start
    step: int | None = None
    stepped: float = 0.0  # when it reported that step
    pause: float | None = None  # the longest time between two of its steps, once there were two
    passed: float | None = None  # since when another one is ahead of it


Lives = dict[TaskId, Life]


def record_activity(lives: Lives, task: TaskId, now: float) -> None:
    """Record that the task printed or reported something."""
    lives[task] = replace(lives[task], last_output=now)


def stepped(lives: Lives, task: TaskId, step: int, now: float) -> None:
    """Record a step: the task is ahead of those that have reported a lower one."""
    old = lives[task]
    pause = None if old.step is None else max(old.pause or 0.0, now - old.stepped)
    ahead = any(life.step is not None and life.step > step for life in lives.values() if life is not old)
    lives[task] = Life(now, step, now, pause, now if ahead else None)
    for name, life in lives.items():
        if name != task and life.step is not None and life.step < step and life.passed is None:
            lives[name] = replace(life, passed=now)


def watched(tasks: Collection[TaskId]) -> set[TaskId]:
    """Return the tasks that train: evaluators and parameter servers are expected to wait."""
    trainers = {task for task in tasks if task.role in (Role.CHIEF, Role.WORKER)}
    return trainers or set(tasks)


def look(
    lives: Mapping[TaskId, Life], patience: float, now: float, *, since: float, completion: Completion
) -> HangSuspected | None:
    """Return the hang that `lives` show at `now`, if any; silence before `since` does not count.

    If tasks step together, one cannot be far ahead of another: a task that falls behind, silently and for
    longer than ever before, hangs. Before its second step a task only counts as silent together with all
    others.
    """
    if not lives:
        return None
    if completion is Completion.ALL:
        behind = {task: _behind(life, patience, now, since) for task, life in lives.items()}
        late = {task: seconds for task, seconds in behind.items() if seconds}
        if late and len(late) < len(lives):
            return HangSuspected(HangKind.LAGGING, tuple(map(str, sorted(late))), max(late.values()))
    quiet = now - max(since, *(life.last_output for life in lives.values()))
    if quiet < patience:
        return None
    return HangSuspected(HangKind.SILENT, tuple(map(str, sorted(lives))), quiet)


def _behind(life: Life, patience: float, now: float, since: float) -> float:
    """Return how long it has been behind, once that is too long; otherwise 0."""
    if life.passed is None or life.pause is None:
        return 0.0
    seconds = now - max(since, life.last_output, life.passed)
    return seconds if seconds >= max(patience, _UNUSUAL * life.pause) else 0.0


# --- tasks that train separately: none ever connected to another, or nothing was reduced ---

CLEAR = 60.0  # seconds after which tasks without visible progress are assumed to train
SHORT = 10.0  # seconds; a shorter run without visible progress was no training
SETTLED = 3.0  # seconds from the first progress: the nodes check twice a second

_HINT = (
    "train with `MultiWorkerMirroredStrategy`, or call `init_process_group()` (Lightning: set `num_nodes`) or"
    " `jax.distributed.initialize()`; set `framework` under [job] if it was not detected"
    ' (docs/frameworks.md); tasks that need no others: `framework = "none"`'
)
_HINT_UNPATCHED = (
    "keep the PYTHONPATH that is set, as in `PYTHONPATH=src:$PYTHONPATH`, and start Python without -E, -I,"
    " and -S (docs/hangs.md): batches may be lost, or counted twice"
)
_HINT_IDLE = "build and compile the model, its optimizer and metrics within `strategy.scope()`"


def apart(states: Mapping[str, Peers], tasks: Collection[str], *, trains: bool) -> PeersReported | None:
    """Return the tasks that train separately, or unpatched; None unless the nodes report it."""
    if unpatched := sorted(task for task in tasks if states.get(task) is Peers.UNPATCHED):
        return PeersReported(tuple(unpatched), connected=True, unpatched=True)
    contacts = {states.get(task, Peers.UNKNOWN) for task in tasks}
    if len(tasks) < 2 or contacts & {Peers.UNKNOWN, Peers.MET}:
        return None
    if Peers.IDLE in contacts and not trains:
        return None  # it may only predict
    return PeersReported(tuple(sorted(tasks)), Peers.IDLE in contacts)


def separate(event: PeersReported) -> str:
    """Return the warning for an event, or the message that it is over."""
    if not event.apart:
        return "the tasks are connected to each other now"
    tasks = ranges.fold(event.apart)
    if event.unpatched:
        return f"{tasks} train without the changes that orchestrate makes to TensorFlow and Keras"
    if event.connected:
        return f"{tasks} train separate models: their strategy has not combined a gradient yet"
    return f"{tasks} run separately: no task has opened a connection to another"


def separate_warning(event: PeersReported) -> str:
    """Return the warning and its hint on one line."""
    return f"{separate(event)}; {separate_hint(event)}"


def separate_hint(event: PeersReported) -> str:
    if event.unpatched:
        return _HINT_UNPATCHED
    return _HINT_IDLE if event.connected else _HINT
