"""Tasks that succeed each for itself: none was ever connected to another, or nothing was reduced. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from orchestrator import ranges
from orchestrator.events import PeersReported
from orchestrator.wire import Peers

CLEAR = 60.0  # seconds after which tasks that show no progress are taken for training
SHORT = 10.0  # seconds; what ends sooner, and shows no progress, was no training
SETTLED = 3.0  # seconds from the first progress: the nodes look twice a second

HINT = (
    "run the framework's own start in the program (docs/frameworks.md); tasks that need no others:"
    ' `framework = "none"` under [job]'
)
HINT_IDLE = "build and compile the model, its optimizer and metrics within `strategy.scope()`"


def apart(states: Mapping[str, Peers], tasks: Collection[str], *, trains: bool) -> PeersReported | None:
    """Return the tasks that train each for itself; None unless every task's node says so."""
    found = {states.get(task, Peers.UNKNOWN) for task in tasks}
    if len(tasks) < 2 or found & {Peers.UNKNOWN, Peers.MET}:
        return None
    if Peers.IDLE in found and not trains:
        return None  # it may only predict
    return PeersReported(tuple(sorted(tasks)), Peers.IDLE in found)


def words(event: PeersReported) -> str:
    """Return the warning of an event, or that it is over."""
    if not event.apart:
        return "the tasks are connected to each other now"
    tasks = ranges.fold(event.apart)
    if event.connected:
        return f"{tasks} train separate models: their strategy has not combined a gradient yet"
    return f"{tasks} run separately: no task has opened a connection to another"


def warning(event: PeersReported) -> str:
    """Return the warning and its hint in one line."""
    return f"{words(event)}; {hint(event)}"


def hint(event: PeersReported) -> str:
    return HINT_IDLE if event.connected else HINT
