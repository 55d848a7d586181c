"""The file of `--metrics`: a run's figures in Prometheus' format, for node_exporter."""

import errno
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from orchestrator.events import DataPlaced, Event, Noted, Outcome, Stamped, TaskProgressed, TreeSynced
from orchestrator.node.base.fault import reason
from orchestrator.plainfile import write_atomically
from orchestrator.run.view import TaskState, View, apply

_PAUSE = 1.0  # seconds between two writes
_PATIENCE = 5.0  # seconds for the last one
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class MetricsFile:
    """Receives a run's events and replaces the file in its own thread: no event waits for a slow disk."""

    def __init__(self, path: Path, history: Iterable[Stamped]) -> None:
        self._path, self._view = path, View()
        self._received: Counter[str] = Counter()  # bytes of code and data by host
        self._news, self._over = threading.Event(), threading.Event()
        for stamped in history:
            self(stamped)

    def __call__(self, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, TreeSynced | DataPlaced):
            self._received[event.host] += event.sent + (event.peers if isinstance(event, DataPlaced) else 0)
        if isinstance(event, TaskProgressed) and event.diverged:
            event = replace(event, loss=math.nan if event.diverged == "nan" else math.inf)
        self._view = apply(self._view, event, stamped.at)
        self._news.set()

    def start(self, emit: Callable[[Event], None]) -> None:
        self._thread = threading.Thread(target=self._keep, args=(emit,), name="metrics", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Write the state after the last events."""
        self._over.set()
        self._news.set()
        self._thread.join(_PATIENCE)

    def _keep(self, emit: Callable[[Event], None]) -> None:
        warned = over = False
        while not over and self._news.wait():
            self._news.clear()
            over = self._over.is_set()
            try:
                if self._path.exists() and not self._path.is_file():
                    raise OSError(errno.EEXIST, "it is no file")
                data = text(self._view, dict(self._received)).encode("utf-8", "replace")
                write_atomically(self._path, data, 0o644)  # node_exporter runs as another user
            except OSError as error:
                if not warned:
                    emit(Noted(f"the metrics cannot be written to {self._path}: {reason(error)}"))
                warned = True
            self._over.wait(_PAUSE)


def text(view: View, received: Mapping[str, int]) -> str:
    """Return the figures of a run, and the bytes that its hosts received."""
    run = {"run": view.planned.run, "name": view.planned.name} if view.planned else {}
    lines: dict[str, list[str]] = {}

    def add(name: str, value: float, **labels: str) -> None:
        kind = "counter" if name.endswith("_total") else "gauge"
        pairs = ",".join(f'{key}="{word.translate(_ESCAPES)}"' for key, word in (run | labels).items())
        rows = lines.setdefault(name, [f"# TYPE orchestrate_{name} {kind}\n"])
        rows.append(f"orchestrate_{name}{{{pairs}}} {float(value)!r}\n")

    add("run_start_time_seconds", view.began)
    add("run_restarts_total", len(view.failures))
    for outcome in Outcome:
        add("run_ended", view.ended is not None and view.ended.outcome is outcome, outcome=outcome)
    for task in view.tasks.values():
        for state in TaskState:
            add("task_state", view.state(task) is state, task=task.task, host=task.host, state=state)
        for name in ("step", "loss", "steps_per_second"):
            if (value := getattr(task, name)) is not None:
                add(f"task_{name}", value, task=task.task, host=task.host)
    for host, count in received.items():
        add("host_received_bytes_total", count, host=host)
    return "".join(line for rows in lines.values() for line in rows)
