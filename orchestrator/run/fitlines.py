r"""Progress of `model.fit`, read from what Keras prints of it: for scripts that report nothing. Pure.

The lines are those of `Progbar` in Keras 2 (tf_keras) and Keras 3, with verbose=1 and 2:

    Epoch 2/8
    3/6 [=============>................] - ETA: 0s - loss: 0.6386 - accuracy: 0.6250
    6/6 - 0s - loss: 0.5853 - accuracy: 0.8958 - 398ms/epoch - 66ms/step

An epoch of verbose=1 is one line that is drawn again and again behind `\r` and `\b`; it ends with the epoch.
"""

from __future__ import annotations

import math
import re

from msgspec import Struct
from msgspec.structs import replace

_LONGEST = 4096  # bytes of a redraw
_LOOKED_AT = 8192  # of what came at once, the end in which a redraw is looked for
_ENDS = re.compile(rb"[\r\n\x08]+")
_EPOCH = re.compile(rb"(?:^|[\r\n\x08])Epoch (\d{1,9})/(\d{1,9})[ \t]*(?=[\r\n\x08]|$)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DRAWN = re.compile(
    r"\s*(?P<step>\d{1,12})/(?P<steps>\d{1,12}|Unknown) "
    r"(?:\[[=>.]+\] - |[\u2500-\u257f]+ |- )?"  # the bar of Keras 2, of Keras 3, none
    r"(?=ETA: |\d+(?:s|ms|us)\b|[\d:]+ \d+(?:s|ms|us)/step\b)"
    r"(?P<rest>.*)"
)
_LOSS = re.compile(r" - loss: (\S+)")
_ACCURACY = re.compile(r" - (?:[a-z_]+_)?acc(?:uracy)?: (\S+)")
_PACE = re.compile(r"\b(\d+(?:\.\d+)?)(s|ms|us)/step\b")
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


class Fit(Struct, frozen=True):
    """Progress of a `model.fit`; None stands for what its lines do not say."""

    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None  # of this epoch
    steps: int | None = None
    loss: float | None = None
    diverged: str = ""  # "nan" or "inf", where the loss is not a number
    steps_per_second: float | None = None
    accuracy: float | None = None


class Lines:
    """Reads one task's output as it comes, however it is cut.

    `several`: other tasks train the same model. Until an epoch has ended, Keras 2 then prints the sum of
    their losses (and accuracies above 1): of such a redraw the loss is left out.
    """

    def __init__(self, *, several: bool = False) -> None:
        self._several = several
        self.fit: Fit | None = None
        self._rest = b""  # the redraw that may continue

    def feed(self, data: bytes) -> None:
        """Take more of the output."""
        text = self._rest + data
        begins = max(0, len(text) - _LOOKED_AT)
        pieces = _ENDS.split(text[begins:])
        if b" loss: " in text or b"Epoch " in text:  # a flood of other lines costs next to nothing
            for piece in pieces[begins > 0 :]:
                if found := _EPOCH.fullmatch(piece):
                    # With verbose=2 the loss is told once an epoch: until then the last one is the newest.
                    known, epoch, epochs = self.fit or Fit(), int(found[1]), int(found[2])
                    self.fit = replace(known, epoch=epoch, epochs=epochs, step=None, steps=None)
                elif b"/" in piece[:64]:
                    self._drawn(piece)
        # The end before it stays, so that a line which begins there is still seen to begin.
        self._rest = (b"\n" if len(pieces) > 1 or begins else b"") + pieces[-1]
        if len(self._rest) > _LONGEST:
            self._rest = b"."

    def _drawn(self, piece: bytes) -> None:
        found = _DRAWN.match(_COLOUR.sub("", piece[:_LONGEST].decode("utf-8", "replace")))
        if found is None:
            return
        known = self.fit or Fit()
        rest = found["rest"]
        loss, accuracy = _LOSS.search(rest), _ACCURACY.search(rest)
        pace = _PACE.search(rest)
        seconds = float(pace[1]) * _UNITS[pace[2]] if pace else 0.0  # which may be what a time rounds to
        value = _number(loss[1]) if loss else None
        if value is None:
            return  # of `model.predict`, or of something else
        summed = self._several and rest.startswith("ETA: ") and math.isfinite(value)
        bad = "" if math.isfinite(value) else "nan" if math.isnan(value) else "inf"
        self.fit = replace(
            known,
            step=int(found["step"]),
            steps=None if found["steps"] == "Unknown" else int(found["steps"]),
            loss=known.loss if summed else None if bad else value,
            diverged=known.diverged if summed else bad,
            steps_per_second=1 / seconds if seconds else known.steps_per_second,
            accuracy=_number(accuracy[1]) if accuracy and not summed else known.accuracy,
        )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
