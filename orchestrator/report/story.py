"""The story of a run: what its events, logs and stacks tell beside its view, read once and bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import events as ev
from orchestrator.diagnosis.ends import end_after, failed
from orchestrator.report.curves import Point, joined, printed
from orchestrator.store import RunFolder
from orchestrator.store.reader import last_lines
from orchestrator.text import cut, duration, plain

_LAST = 40  # lines of a log
_LONGEST = 1000  # characters of one of them
_READ = 8 << 20  # bytes of all logs that are read closely
_STACKS = 3  # files, the newest
_MOST_STACKS = 1000  # lines of one


@dataclass
class Bar:
    """Something that lasted."""

    lane: str
    began: float  # seconds since the epoch, as `ended`
    ended: float | None = None
    kind: str = "open"  # phase, good, bad, stopped, lost
    text: str = ""


@dataclass
class Story:
    """All that the view of a run does not keep of its events."""

    last: float = 0.0
    bars: list[Bar] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    hosts: dict[str, ev.HostDescribed] = field(default_factory=dict)
    pairs: dict[tuple[str, str], ev.PairReported] = field(default_factory=dict)  # the worst one of each two
    starts: list[ev.TaskStarted] = field(default_factory=list)
    clocks: dict[str, float] = field(default_factory=dict)
    reported: dict[tuple[str, str], list[Point]] = field(default_factory=dict)  # by task and attempt
    newest: dict[str, list[Point]] = field(default_factory=dict)  # of them, in the last attempt
    notes: dict[str, None] = field(default_factory=dict)

    def tell(self, at: float, event: ev.Event) -> None:
        self.last = max(self.last, at)
        match event:
            case ev.PhaseStarted(phase) if phase is not ev.Phase.FOLLOW:
                self.bars.append(Bar(phase, at))
            case ev.PhaseEnded(phase, ok, seconds):
                self._end(phase, at, "phase" if ok else "bad", duration(seconds))
            case ev.TaskStarted(task, attempt=attempt):
                if (task, attempt) not in self.reported:
                    self.bars.append(Bar(_lane(task, attempt), at))
                    self.starts.append(event)
                    self.reported[task, attempt] = self.newest[task] = []
            case ev.TaskExited(task, attempt=attempt):
                kind = "bad" if failed(event) else "stopped" if event.stopped else "good"
                self._end(_lane(task, attempt), at, kind, end_after(event))
            case ev.HostLost(host, why):
                self.bars.append(Bar(host, at, text=why))
            case ev.HostRecovered(host, seconds):
                self._end(host, at, "lost", f"no word for {duration(seconds)}")
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
            case ev.HostConnected(host, _, clock):
                self.clocks[host] = clock
            case ev.TaskProgressed(task, step, loss, pace):
                self.newest.setdefault(task, []).append(Point(at, step, loss, pace=pace))
            case ev.Noted(text):
                self.notes[text] = None
            case _:
                pass

    def _end(self, lane: str, at: float, kind: str, text: str) -> None:
        for bar in self.bars:
            if bar.lane == lane and bar.ended is None:
                bar.ended, bar.kind, bar.text = at, kind, text


def _lane(task: str, attempt: str) -> str:
    return task if attempt == "1" else f"{task}, attempt {attempt}"


def points(folder: RunFolder, story: Story) -> dict[str, list[list[Point]]]:
    """Join what each task told of its training in each attempt, of those that told anything."""
    several = len({start.task for start in story.starts}) > 1
    told: dict[str, list[list[Point]]] = {}
    for start in story.starts:
        clock = story.clocks.get(start.host, 0.0)
        paths = folder.log(start.attempt, start.task), folder.times(start.attempt, start.task)
        said = printed(*paths, clock, _READ // len(story.starts), several=several)
        if each := joined(story.reported[start.task, start.attempt], said):
            told.setdefault(start.task, []).append(each)
    return told


def logs(folder: RunFolder, newest: Sequence[ev.TaskStarted]) -> list[tuple[ev.TaskStarted, list[str]]]:
    """The last lines of each task that has a log."""
    files = ((start, folder.log(start.attempt, start.task)) for start in newest)
    found = ((start, last_lines(path, _LAST)) for start, path in files)
    return [(start, [cut(plain(line), _LONGEST) for line in lines]) for start, lines in found if lines]


def stacks(folder: Path) -> dict[str, list[str]]:
    """The newest files of stacks, of each its last lines."""
    newest = sorted(folder.glob("*.txt"), reverse=True)[:_STACKS]
    return {path.name: list(last_lines(path, _MOST_STACKS)) for path in newest}
