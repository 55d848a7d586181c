"""Metrics that tasks report or print, thinned out as they arrive. Pure."""

from collections.abc import Iterable

from msgspec.structs import replace

from orchestrator.events import TaskProgressed
from orchestrator.value import Value

MOST_NAMES = 32  # metrics of a task; others are dropped
_MOST, _LEAST, _ALL = 1000, 100, 8000  # points of a metric: of one task, of each of very many, of all tasks


class TrainingPoint(Value, omit_defaults=True):
    n: int  # its number among the points of the run
    at: float  # seconds since the epoch
    task: str
    attempt: str
    step: int
    values: dict[str, float]
    diverged: str = ""
    kept: bool = False  # it stands for those around it; otherwise it was only shown as the newest

    @property
    def event(self) -> TaskProgressed:
        others = dict(self.values)
        loss, pace = others.pop("loss", None), others.pop("steps_per_second", None)
        return TaskProgressed(self.task, self.step, loss, pace, self.diverged, others)


class _Series:
    """The points of one metric: every `stride`-th, and the lowest, the highest and the newest."""

    def __init__(self, most: int) -> None:
        self._most, self.stride, self.seen = most, 1, 0
        self.kept: list[TrainingPoint] = []
        self._pins: dict[str, tuple[float, TrainingPoint]] = {}

    def take(self, point: TrainingPoint, value: float, *, stored: bool = False) -> bool:
        """Return True for a point that is kept; a `stored` one was read from a file and always is."""
        for name, better in (("low", value.__lt__), ("high", value.__gt__), ("last", None)):
            if better is None or name not in self._pins or better(self._pins[name][0]):
                self._pins[name] = value, point
        stays = stored or self.seen % self.stride == 0
        self.seen += 1
        if stays:
            self.kept.append(point)
            if len(self.kept) > self._most:
                self.kept, self.stride = self.kept[::2], self.stride * 2
        return stays

    def points(self) -> Iterable[TrainingPoint]:
        yield from self.kept
        yield from (point for _, point in self._pins.values())


class Thinned:
    """The points of a run: a bounded number for each task and metric, however many were reported."""

    def __init__(self, tasks: int) -> None:
        self._most = max(_LEAST, min(_MOST, _ALL // max(1, tasks)))
        self._series: dict[str, dict[str, _Series]] = {}

    def take(self, point: TrainingPoint, *, stored: bool = False) -> bool:
        """Return True for a point that is kept, until others replace it."""
        of_task = self._series.setdefault(point.task, {})
        stays = False
        for name, value in (point.values or {"": 0.0}).items():
            if name in of_task or len(of_task) < MOST_NAMES:
                stays |= of_task.setdefault(name, _Series(self._most)).take(point, value, stored=stored)
        return stays

    def points(self) -> list[TrainingPoint]:
        """Return all points that are kept, in order."""
        all_series = [series for of_task in self._series.values() for series in of_task.values()]
        kept = {point.n for series in all_series for point in series.kept}
        points = {point.n: point for series in all_series for point in series.points()}
        return [replace(points[n], kept=n in kept) for n in sorted(points)]

    @property
    def strides(self) -> dict[str, dict[str, int]]:
        return {
            task: {name: series.stride for name, series in each.items()}
            for task, each in self._series.items()
        }

    def stride(self, strides: dict[str, dict[str, int]]) -> None:
        """Continue with the stride of the points that were taken before."""
        for task, each in strides.items():
            for name, stride in each.items():
                if name in self._series.get(task, {}):
                    self._series[task][name].stride = max(1, stride)
