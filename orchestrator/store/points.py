"""The file of a run's points: written by its keeper, read by viewers while it grows."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orchestrator.clock import SYSTEM, Clock
from orchestrator.events import TaskProgressed
from orchestrator.node.base.descriptors import write_all
from orchestrator.plainfile import open_plain, tail_of, write_atomically
from orchestrator.run.points import Thinned, TrainingPoint

_PAUSE = 1.0  # seconds between two points of a task that are only the newest
_SLACK = 2000  # lines beyond twice the points that are kept, before the file is written again
_HEAD = 64  # bytes that tell one writing of the file from another
_NEWEST = 64 << 10  # bytes of the end in which the newest points of all tasks are
_MOST = 64 << 20  # bytes of the file
_decode = msgspec.json.Decoder(TrainingPoint).decode


class _Head(Struct):
    """The first line."""

    made: float  # seconds since the epoch: no two writings of the file begin alike
    strides: dict[str, dict[str, int]] = {}


_decode_head = msgspec.json.Decoder(_Head).decode


class PointFile:
    """Thins out and stores what tasks report and print; a keeper that takes over continues the file."""

    def __init__(self, path: Path, tasks: int, clock: Clock = SYSTEM) -> None:
        self._path, self._thinned, self._clock = path, Thinned(tasks), clock
        self._waiting: dict[str, TrainingPoint] = {}  # the newest of each task, unless it is on disk
        self._shown: dict[str, float] = {}  # when the last one of a task was (monotonic)
        self._buffer, self._lines, self._next, self._most = b"", 0, 0, _SLACK
        data, _ = tail_of(path, _MOST)
        if data and not data.endswith(b"\n"):  # half a line of a keeper that was killed
            self._buffer = b"\n"
        for point in _points(data):
            self._lines, self._next = self._lines + 1, max(self._next, point.n + 1)
            self._thinned.take(point, stored=point.kept)
        try:
            self._thinned.stride(_decode_head(data.partition(b"\n")[0]).strides)
        except msgspec.MsgspecError:
            self._lines = self._most + 1  # written anew

    def take(self, event: TaskProgressed, attempt: str, at: float) -> list[TrainingPoint]:
        """Take what a task reported or printed; return the point if it is kept."""
        values = {"loss": event.loss, "steps_per_second": event.steps_per_second, **event.metrics}
        present = {name: value for name, value in values.items() if value is not None}
        point = TrainingPoint(self._next, at, event.task, attempt, event.step, present, event.diverged)
        self._next += 1
        if self._thinned.take(point):
            return self._show(replace(point, kept=True))
        self._waiting[event.task] = point
        return []

    def newest(self, task: str, *, now: bool = False) -> list[TrainingPoint]:
        """Return the newest point of a task that is not on disk yet, at most one a second."""
        due = now or self._clock.now() - self._shown.get(task, 0.0) >= _PAUSE
        return self._show(self._waiting[task]) if due and task in self._waiting else []

    def _show(self, point: TrainingPoint) -> list[TrainingPoint]:
        self._waiting.pop(point.task, None)
        self._shown[point.task] = self._clock.now()
        self._buffer += msgspec.json.encode(point) + b"\n"
        self._lines += 1
        return [point]

    def write(self) -> None:
        """Write the new points to disk; raise OSError if that fails, which loses nothing."""
        if not self._buffer:
            return
        if not self._path.exists() or self._lines > self._most:
            points = self._thinned.points()
            head = msgspec.json.encode(_Head(self._clock.wall(), self._thinned.strides))
            lines = (msgspec.json.encode(point) for point in points)
            write_atomically(self._path, b"\n".join((head, *lines, b"")))
            self._lines, self._most = len(points), _SLACK + 2 * len(points)
        else:
            fd = open_plain(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                write_all(fd, self._buffer)
            except OSError:
                self._buffer = b"\n" + self._buffer  # perhaps behind half a line
                raise
            finally:
                os.close(fd)
        self._buffer = b""


class PointReader:
    """Reads the points of a run; `poll` again for those that were added since."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._head, self._seen = path, 0, b"", -1

    def poll(self) -> list[TrainingPoint]:
        """Return the points that were not returned before, in order; [] if none can be read."""
        try:
            fd = open_plain(self._path, os.O_RDONLY)
        except OSError:
            return []
        with os.fdopen(fd, "rb") as file:
            head = file.read(_HEAD)
            if not (self._head and head.startswith(self._head)):  # it was written anew
                self._offset = 0
            self._head = head
            file.seek(self._offset)
            data = file.read(_MOST)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        points = [point for point in _points(whole) if point.n > self._seen]
        self._seen = max((point.n for point in points), default=self._seen)
        return points


def newest(path: Path) -> list[TrainingPoint]:
    """Return the newest points, in their order."""
    return list(_points(tail_of(path, _NEWEST)[0]))


def _points(data: bytes) -> Iterator[TrainingPoint]:
    """Yield the points in these lines; other lines, such as the first one, are skipped."""
    for line in data.split(b"\n"):
        try:
            yield _decode(line)
        except (msgspec.MsgspecError, RecursionError):
            continue
