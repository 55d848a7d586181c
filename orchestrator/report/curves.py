"""Loss, accuracy and pace of tasks: points from their reports and output, and charts of them."""

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from orchestrator.node.task.output import RECORD
from orchestrator.plainfile import tail_of
from orchestrator.ranges import grouped
from orchestrator.run.points import MOST_NAMES
from orchestrator.text import some

_MOST = 32 << 20  # bytes of a log and of its times, from the end
_PIECES = 1000  # of one log
_MOST_POINTS = 2400  # in all lines of a chart, approximately
_LONGEST = 2048  # bytes of a printed line
_MOST_NUMBER = 1e15  # larger values are not drawn
_FLAT = 1e-9  # smaller ranges are not drawn
_STEEP = 50.0  # ratio of the highest to the lowest loss above which the scale is logarithmic
PACE = "steps_per_second"
_FIRST = ("loss", "val_loss", "accuracy", "val_accuracy", PACE)
_NAMES = ("loss", "accuracy")  # that are read from printed lines
_NUMBER = rb"['\"]?[ \t]*[:=][ \t]*([0-9]{0,9}\.?[0-9]{1,20}(?:[eE][+-]?[0-9]{1,3})?)"
_ENDS = re.compile(rb"[\r\n\x08]+")
_OF_INTEREST = re.compile(rb"(?i)loss|acc|epoch")
_PRINTED = (
    re.compile(rb"(?i)\b(?:step|epoch)[ \t]*[:=]?[ \t]*([0-9]{1,12})"),
    *(re.compile(rb"(?i)(?<![a-z_])(?:train[_ ])?" + name + _NUMBER) for name in (b"loss", b"acc(?:uracy)?")),
)
_UNITS = ((86_400, " d"), (3600, " h"), (60, " min"))  # seconds of each
_NEVER: Mapping[str, Sequence[float]] = {}

Line: TypeAlias = list[tuple[float, float]]


class Point(NamedTuple):
    at: float  # seconds since the epoch
    step: float | None = None
    values: Mapping[str, float] = {}


def printed(log: Path, times: Path, most: int) -> list[Point]:
    """Return the numbers that a task printed: `loss: 0.3`, `accuracy=0.9`.

    About `most` bytes are searched. A log without the times of its bytes has no points.
    """
    points, rest = list[Point](), b""
    for at, data in _pieces(log, times, most):
        *drawn, rest = _ENDS.split(rest[-_LONGEST:] + data)
        for line in (line[:_LONGEST] for line in drawn if _OF_INTEREST.search(line)):
            step, *numbers = (match and float(match[1]) for match in (rule.search(line) for rule in _PRINTED))
            values = {name: value for name, value in zip(_NAMES, numbers, strict=True) if value is not None}
            if values:
                points.append(Point(at, step, values))
    return points


def _pieces(log: Path, times: Path, most: int) -> Iterator[tuple[float, bytes]]:
    """Yield a log in at most _PIECES pieces, each with the time when it was written."""
    (data, begins), (index, cut) = tail_of(log, _MOST), tail_of(times, _MOST)
    index = index[-cut % RECORD.size :]
    whole = RECORD.iter_unpack(index[: len(index) // RECORD.size * RECORD.size])
    records = [(offset - begins, at / 1e9) for offset, at in whole if 0 <= offset - begins < len(data)]
    records = records[:: 1 + len(records) // _PIECES]
    each = max(_LONGEST, most // max(1, len(records)))
    for (offset, at), (after, _) in pairwise([*records, (len(data), 0)]):
        begins = max(offset, after - each)
        epoch = data.rfind(b"\nEpoch ", offset, begins)  # without it the steps of Keras cannot be counted
        yield at, (data[epoch : epoch + 32] + b"\n") * (epoch >= 0) + data[begins:after]


def joined(reported: Sequence[Point], printed: Sequence[Point]) -> list[Point]:
    """Return the reported points, with printed numbers that were not reported at the step reported last."""
    names = {name for point in reported for name in point.values}
    if "loss" not in names:
        return list(printed or reported)
    points = list(reported)
    for at, _, values in printed:
        if others := {name: value for name, value in values.items() if name not in names}:
            after = bisect_right(reported, at, key=lambda point: point.at)
            points.append(Point(at, reported[max(0, after - 1)].step, others))
    return sorted(points, key=lambda point: point.at)


def last(points: Iterable[Point]) -> dict[str, float]:
    return {
        name: value
        for point in points
        for name, value in {"step": point.step, **point.values}.items()
        if value is not None
    }


def charts(
    tasks: Mapping[str, Sequence[Point]],
    began: float,
    restarts: Mapping[str, Sequence[float]] = _NEVER,
    *,
    zero: bool = False,
) -> list[dict[str, Any]]:
    """Draw each number of the tasks over steps and over time, in percent.

    No line leads from one attempt to the next; `restarts` are the times at which each task was started again.
    With `zero` every scale begins at 0.
    """
    given = {name for points in tasks.values() for point in points for name in point.values}
    names = sorted(given, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))
    kinds = product(names[:MOST_NAMES], ("step", "at"))
    drawn = (_chart(name, over, tasks, began, restarts, zero=zero) for name, over in kinds)
    return [chart for chart in drawn if chart]


def _chart(
    name: str,
    over: str,
    tasks: Mapping[str, Sequence[Point]],
    began: float,
    restarts: Mapping[str, Sequence[float]],
    *,
    zero: bool,
) -> dict[str, Any]:
    """Draw a line for each task, with a gap at each restart; return {} if there is nothing to draw."""
    most = max(50, _MOST_POINTS // max(1, len(tasks)))
    lines = {task: _lines(points, name, over, most, restarts.get(task, ())) for task, points in tasks.items()}
    xs, ys = ([pair[axis] for parts in lines.values() for part in parts for pair in part] for axis in (0, 1))
    if not xs or max(xs) - min(xs) <= _FLAT:
        return {}
    pairs = ((task, point) for task, each in tasks.items() for point in each[::-1] if name in point.values)
    bad = {task: point for task, point in pairs if not math.isfinite(point.values[name])}
    span, start, unit, word = (min(xs), max(xs)), 0.0, 1, ""
    if over == "at":  # from the start of the run on
        span = (min(began, span[0]), span[1])
        longer = (each for each in _UNITS if span[1] - began >= 2 * each[0])
        start, (unit, word) = began, next(longer, (1, " s"))
    steep = name == "loss" and 0 < min(ys) * _STEEP < max(ys)
    scale = math.log10 if steep else float
    low, high = scale(min(ys)), scale(max(ys))
    low = 0.0 if 0 <= low < (high if zero else high / 2) and not steep else low

    def path(line: Line) -> str:
        points = [f"{_share(x, *span):.2f} {100 - _share(scale(y), low, high):.2f}" for x, y in line]
        return "M" + "L".join(points if len(points) > 1 else 2 * points)  # a point alone is a dot

    return {
        "title": "steps a second" if name == PACE else name,
        "over": "over time" if over == "at" else "over steps",
        "note": some(
            [f"{task}: {point.values[name]} at step {point.step}" for task, point in bad.items()], 3
        ),
        "paths": {task: "".join(map(path, parts)) for task, parts in lines.items()},
        "xs": [(place, f"{x:,.12g}{word}") for place, x in _round(*((x - start) / unit for x in span))],
        "ys": [(place, f"{10**y if steep else y:.4g}") for place, y in _round(low, high)],
    }


def _lines(points: Sequence[Point], name: str, over: str, most: int, restarts: Sequence[float]) -> list[Line]:
    """Return the parts of a task's line: it is cut at restarts, and where the number is not finite."""
    given = [
        (point.at, point.step if over == "step" else point.at, point.values[name])
        for point in points
        if name in point.values
    ]
    drawn = [(at, x, y) for at, x, y in given if x is not None and abs(y) < _MOST_NUMBER]
    kept = drawn[:: -(1 + len(drawn) // most)][::-1]  # with the last one
    cuts = sorted([*restarts, *(at for at, _, y in given if not math.isfinite(y))])
    parts = grouped((bisect_right(cuts, at), (x, y)) for at, x, y in kept)
    return list(map(list, parts.values()))


def _share(value: float, low: float, high: float) -> float:
    return 100 * (value - low) / (high - low) if high - low > _FLAT else 50.0


def _round(low: float, high: float) -> list[tuple[float, float]]:
    """Return about five round numbers from low to high, each with its position in percent."""
    if high - low <= _FLAT:
        return [(50.0, low)]
    least = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(least))
    step = next((power * factor for factor in (1, 2, 5) if power * factor >= least), power * 10)
    first = math.ceil(low / step - _FLAT)
    numbers = (number * step for number in range(first, first + 8))
    return [(_share(number, low, high), number) for number in numbers if number <= high + step * _FLAT]
