"""The story of a run: its plan, view and events, and the numbers in its logs."""

import math
from typing import Any

from msgspec import Struct

from orchestrator import events as ev
from orchestrator.diagnosis.ends import end_after, failed
from orchestrator.model import RunPlan
from orchestrator.report.curves import PACE, Point, joined, printed
from orchestrator.run.view import View, replay
from orchestrator.store import RunFolder
from orchestrator.store.points import PointReader
from orchestrator.store.reader import events_of
from orchestrator.text import duration

_READ = 8 << 20  # bytes of all logs that are read closely
# The title and the unit of each measurement of a host.
_USED = {
    "cpu": ("processors", 1.0),
    "memory": ("memory, GB", 1e9),
    "gpu_busy": ("GPU, percent", 1.0),
    "gpu_memory": ("GPU memory, GB", 1e9),
}


class Bar(Struct):
    """A span of time on a lane of the timeline."""

    began: float  # seconds since the epoch, as `ended`
    ended: float | None = None
    kind: str = "open"  # phase, good, bad, stopped, lost
    text: str = ""


class Story(Struct):
    """Everything known about a run."""

    plan: RunPlan
    view: View
    kept: bool  # its keeper runs on this machine
    last: float = 0.0  # event, in seconds since the epoch
    lanes: dict[str, list[Bar]] = {}
    marks: list[tuple[float, str]] = []
    hosts: dict[str, ev.HostDescribed] = {}
    pairs: dict[tuple[str, str], ev.PairReported] = {}  # the worst result of each pair
    starts: dict[str, list[ev.TaskStarted]] = {}  # by task
    restarts: dict[str, list[float]] = {}  # by task, when it was started again
    reported: dict[str, list[Point]] = {}
    used: dict[str, list[Point]] = {}  # by host
    statements: dict[ev.Last, dict[str, dict[str, Any]]] = {}  # by kind and task
    notes: list[str] = []

    def add(self, at: float, event: ev.Event) -> None:
        self.last = max(self.last, at)
        match event:
            case ev.PhaseStarted(phase) if phase is not ev.Phase.FOLLOW:
                self._begin(phase, at)
            case ev.PhaseEnded(phase, ok, seconds):
                self._end(phase, at, "phase" if ok else "bad", duration(seconds))
            case ev.TaskStarted(task, attempt=attempt):
                if _lane(task, attempt) not in self.lanes:
                    self._begin(_lane(task, attempt), at)
                    if task in self.starts:
                        self.restarts.setdefault(task, []).append(at)
                    self.starts.setdefault(task, []).append(event)
            case ev.TaskExited(task, attempt=attempt):
                kind = "bad" if failed(event) else "stopped" if event.stopped else "good"
                self._end(_lane(task, attempt), at, kind, end_after(event))
            case ev.HostLost(host, why):
                self._begin(host, at, why)
            case ev.HostRecovered(host, seconds):
                self._end(host, at, "lost", f"no response for {duration(seconds)}")
            case ev.AttemptFailed(attempt):
                self.marks.append((at, f"attempt {attempt} failed"))
            case ev.HangSuspected(_, tasks):
                self.marks.append((at, f"{', '.join(tasks)}: perhaps hanging"))
            case ev.StopRequested(by, why):
                self.marks.append((at, f"stop: {why or by}"))
            case ev.HostDescribed(host):
                self.hosts[host] = event
            case ev.PairReported(source, target):
                if not event.tcp or (source, target) not in self.pairs:
                    self.pairs[source, target] = event
            case ev.TaskProgressed(task, step, loss, pace):
                if event.diverged:
                    loss = math.nan if event.diverged == "nan" else math.inf
                numbers = {"loss": loss, PACE: pace, **event.metrics}
                values = {name: value for name, value in numbers.items() if value is not None}
                self.reported.setdefault(task, []).append(Point(at, step, values))
            case ev.TaskReported(task, kind, data):
                self.statements.setdefault(kind, {}).setdefault(task, {}).update(data)
            case ev.Noted(text):
                self.notes.append(text)
            case _:
                pass

    def _begin(self, lane: str, at: float, text: str = "") -> None:
        self.lanes.setdefault(lane, []).append(Bar(at, text=text))

    def _end(self, lane: str, at: float, kind: str, text: str) -> None:
        for bar in self.lanes.get(lane, ()):
            if bar.ended is None:
                bar.ended, bar.kind, bar.text = at, kind, text


def _lane(task: str, attempt: str) -> str:
    return task if attempt == "1" else f"{task}, attempt {attempt}"


def read(folder: RunFolder) -> Story:
    """Read the story of a run; raise UsageError if its plan or events cannot be read."""
    kept, plan, history = folder.has_keeper(), folder.read_plan(), events_of(folder)
    story = Story(plan, replay(history), kept)
    for stamped in history:
        story.add(stamped.at, stamped.event)
    for point in PointReader(folder.usage).poll():
        given = ((_USED[name], value) for name, value in point.values.items() if name in _USED)
        values = {title: value / unit for (title, unit), value in given}
        story.used.setdefault(point.task, []).append(Point(point.at, values=values))
    return story


def points(folder: RunFolder, story: Story) -> dict[str, list[Point]]:
    """Return the numbers that each task reported and printed in all its attempts."""
    share = _READ // max(1, sum(map(len, story.starts.values())))
    curves = {}
    for task, starts in story.starts.items():
        lines: list[Point] = []
        for start in starts:
            paths = folder.log(start.attempt, task), folder.times(start.attempt, task)
            lines += printed(*paths, share)
        curves[task] = joined(story.reported.get(task, []), lines)
    return {task: each for task, each in curves.items() if each}
