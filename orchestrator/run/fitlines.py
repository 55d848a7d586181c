r"""Progress of `model.fit`, parsed from Keras' output, for scripts that do not report it. Pure.

The lines are those of `Progbar` in Keras 2 (tf_keras) and Keras 3, with verbose=1 and 2:

    Epoch 2/8
    3/6 [=============>................] - ETA: 0s - loss: 0.6386 - accuracy: 0.6250
    6/6 - 0s - loss: 0.5853 - accuracy: 0.8958 - 398ms/epoch - 66ms/step

An epoch of verbose=1 is one line that is drawn again and again behind `\r` and `\b`; it ends with the epoch.
"""

import math
import re

from msgspec import field
from msgspec.structs import replace

from orchestrator.events import TaskProgressed
from orchestrator.value import Value

_LONGEST = 4096  # bytes of a redraw
_MOST = 200  # approximate number of lines with a loss that are read from one chunk
_EPOCH = re.compile(rb"Epoch (\d{1,9})/(\d{1,9})")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DRAWN = re.compile(
    r"\s*(?P<step>\d{1,12})/(?P<steps>\d{1,12}|Unknown) "
    r"(?:\[[=>.]+\] - |[\u2500-\u257f]+ |- )?"  # the progress bar of Keras 2, of Keras 3, none
    r"(?=ETA: |\d+(?:s|ms|us)\b|[\d:]+ \d+(?:s|ms|us)/step\b)"
    r"(?P<rest>.*)"
)
_METRIC = re.compile(r" - ([A-Za-z_][^\s:]{0,99}): (\S+)")
_PACE = re.compile(r"\b(\d+(?:\.\d+)?)(s|ms|us)/step\b")
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


class Fit(Value):
    """Progress of a `model.fit`; None for what its lines do not contain."""

    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None  # of this epoch
    steps: int | None = None
    loss: float | None = None
    diverged: str = ""  # "nan" or "inf" if the loss is not a finite number
    steps_per_second: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # the others
    summed: bool = False  # loss and metrics come from an earlier line

    def progress(self, task: str) -> TaskProgressed:
        """Return what its last line shows of a task's training."""
        step = (self.step or 0) + ((self.epoch or 1) - 1) * (self.steps or 0)
        return TaskProgressed(task, step, self.loss, self.steps_per_second, self.diverged, self.metrics)


class Lines:
    """Reads one task's output as it arrives, split at any byte.

    `several`: other tasks train the same model. Until an epoch has ended, Keras 2 then prints the sum of
    their losses (and accuracies above 1), so the figures of such redraws are left out.
    """

    def __init__(self, *, several: bool = False, offset: int = 0) -> None:
        self._several = several
        self.fit: Fit | None = None
        self.offset = offset  # of what comes next
        self._rest = b""  # a redraw that may continue
        self._seen = b""  # the last reported redraw of this line
        self._over = False  # the epoch: similar output is from `evaluate`

    def feed(self, data: bytes) -> list[tuple[int, Fit]]:
        """Take more output; return what its complete redraws show, each with the byte after it.

        Of several redraws in a line the last one counts.
        """
        text, end = self._rest + data, self.offset - len(self._rest)
        self.offset += len(data)
        *lines, rest = text.split(b"\n")
        redraws: list[tuple[int, Fit]] = []
        if b" loss: " in text or b"Epoch " in text:  # a flood of other lines is nearly free
            every = 1 + text.count(b" loss: ") // _MOST
            for number, line in enumerate(lines, 1 - len(lines)):
                end += len(line) + 1
                piece = _last_redraw(line)
                if epoch := _EPOCH.fullmatch(piece):
                    # With verbose=2 the loss is printed once an epoch: until then the last one is the newest.
                    fit = self.fit or Fit()
                    self.fit = replace(fit, epoch=int(epoch[1]), epochs=int(epoch[2]), step=None, steps=None)
                    self._over = False
                elif number % every == 0:  # the last one in any case
                    self._take(piece, end, redraws)
                    if self.fit and self.fit.epoch and self.fit.step and self.fit.step == self.fit.steps:
                        self._over = True
                self._seen = b""
            whole = rest.rstrip(b"\r\x08")
            whole = whole[: len(whole) - len(_last_redraw(rest))] if whole == rest else whole
            self._take(_last_redraw(whole), end + len(whole), redraws)
            self.fit = self._drawn(_last_redraw(rest)) or self.fit
        self._rest = rest if len(rest) <= _LONGEST else _last_redraw(rest)
        if len(self._rest) > _LONGEST:
            self._rest = b"."
        return redraws

    def _take(self, piece: bytes, end: int, redraws: list[tuple[int, Fit]]) -> None:
        """Read a complete redraw, unless it was read before its line ended."""
        if piece != self._seen and (fit := self._drawn(piece)) is not None:
            self._seen, self.fit = piece, fit
            if not self._over and not fit.summed:
                redraws.append((end, fit))

    def _drawn(self, piece: bytes) -> Fit | None:
        if b" loss: " not in piece or b"/" not in piece[:64]:
            return None
        drawn = _DRAWN.match(_COLOUR.sub("", piece[:_LONGEST].decode("utf-8", "replace")))
        if drawn is None:
            return None
        fit = self.fit or Fit()
        rest = drawn["rest"]
        values = {name: value for name, text in _METRIC.findall(rest) if (value := _number(text)) is not None}
        pace = _PACE.search(rest)
        seconds = float(pace[1]) * _UNITS[pace[2]] if pace else 0.0  # a time may be rounded to this
        loss = values.pop("loss", None)
        if loss is None:
            return None  # from `model.predict`, or something else
        summed = self._several and rest.startswith("ETA: ") and math.isfinite(loss)
        bad = "" if math.isfinite(loss) else "nan" if math.isnan(loss) else "inf"
        return replace(
            fit,
            step=int(drawn["step"]),
            steps=None if drawn["steps"] == "Unknown" else int(drawn["steps"]),
            loss=fit.loss if summed else None if bad else loss,
            diverged=fit.diverged if summed else bad,
            steps_per_second=1 / seconds if seconds else fit.steps_per_second,
            metrics=fit.metrics if summed else {k: v for k, v in values.items() if math.isfinite(v)},
            summed=summed,
        )


def _last_redraw(line: bytes) -> bytes:
    line = line.rstrip(b"\r\x08 \t")
    return line[max(line.rfind(b"\r"), line.rfind(b"\x08")) + 1 :]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
