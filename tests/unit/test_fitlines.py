"""The files in keras/ are what Keras 2 (tf_keras 2.21) and Keras 3.12 printed into a pipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.run.fitlines import Fit, Lines

REAL = Path(__file__).parent / "keras"

# Of each file: the places that are told of on the way, and the loss at the end.
FILES: list[tuple[str, list[tuple[int | None, int | None, int | None]], float | None]] = [
    (
        "keras2-verbose1-val",
        [(1, None, None), (1, 1, 6), (1, 6, 6), (2, None, None), (2, 1, 6), (2, 6, 6)],
        0.6386,
    ),
    ("keras2-verbose2-val", [(1, None, None), (1, 6, 6), (2, None, None), (2, 6, 6)], 0.7609),
    (
        "keras3-verbose1-val",
        [(1, None, None), (1, 1, 6), (1, 2, 6), (1, 6, 6), (2, None, None), (2, 1, 6), (2, 6, 6)],
        0.6995,
    ),
    ("keras3-verbose2-val", [(1, None, None), (1, 6, 6), (2, None, None), (2, 6, 6)], 0.7057),
    (
        "keras2-verbose1-gen",
        [(1, None, None), (1, 1, None), (1, 3, 3), (2, None, None), (2, 1, 3), (2, 3, 3)],
        0.723,
    ),
    ("keras2-verbose2-gen", [(1, None, None), (1, 3, 3), (2, None, None), (2, 3, 3)], 0.7168),
    (
        "keras3-verbose1-gen",
        [(1, None, None), (1, 1, None), (1, 3, None), (1, 3, 3), (2, None, None), (2, 1, 3), (2, 3, 3)],
        0.6455,
    ),
    ("keras3-verbose2-gen", [(1, None, None), (1, 3, 3), (2, None, None), (2, 3, 3)], 1.0145),
    # One epoch has no number; what follows are `evaluate`, and `predict`, which has no loss.
    ("keras2-verbose1-one", [(None, 1, 2), (None, 2, 2), (None, 1, 2), (None, 2, 2)], 0.9484),
    ("keras2-verbose2-one", [(None, 2, 2)], 0.7307),
    ("keras3-verbose1-one", [(None, 1, 2), (None, 2, 2), (None, 1, 2), (None, 2, 2)], 0.7401),
    ("keras3-verbose2-one", [(None, 2, 2)], 0.6893),
    ("keras2-verbose1-nan", [(None, 1, 2), (None, 2, 2)], None),
    ("keras2-verbose2-nan", [(None, 2, 2)], None),
    ("keras3-verbose1-nan", [(None, 1, 2), (None, 2, 2)], None),
    ("keras3-verbose2-nan", [(None, 2, 2)], None),
]


@pytest.mark.parametrize(("name", "places", "loss"), FILES)
def test_what_keras_prints_is_read(
    name: str, places: list[tuple[int | None, int | None, int | None]], loss: float | None
) -> None:
    data = (REAL / f"{name}.txt").read_bytes()
    lines = Lines()
    seen: list[tuple[int | None, int | None, int | None]] = []
    for piece in data.replace(b"\r", b"\n\r").split(b"\n"):  # as it comes: a redraw, or a line, at once
        lines.feed(piece + b"\n")
        fit = lines.fit
        if fit and (not seen or seen[-1] != (fit.epoch, fit.step, fit.steps)):
            seen.append((fit.epoch, fit.step, fit.steps))
    assert seen == places
    assert lines.fit is not None
    assert (lines.fit.loss, lines.fit.diverged) == (loss, "" if loss else "nan")


@pytest.mark.parametrize("name", [name for name, *_ in FILES])
def test_it_is_read_however_it_is_cut(name: str) -> None:
    data = (REAL / f"{name}.txt").read_bytes()
    whole = Lines()
    whole.feed(data)
    for size in (1, 7, 64):
        cut = Lines()
        for start in range(0, len(data), size):
            cut.feed(data[start : start + size])
        assert cut.fit == whole.fit


# Of four tasks that trained together (tf_keras 2.21): the sum of all, then what each had.
SEVERAL = (
    b"Epoch 1/2\n"
    b"\r 1/20 [>.............................] - ETA: 2s - loss: 9.1847 - accuracy: 0.1844\x08\x08"
    b"\r20/20 [==============================] - 2s 100ms/step - loss: 0.0361 - accuracy: 0.9955\n"
    b"Epoch 2/2\n"
    b"\r16/20 [=======================>......] - ETA: 0s - loss: 0.1485 - accuracy: 3.9805\x08\x08"
)


def test_a_sum_over_all_tasks_is_no_loss() -> None:
    alone, several = Lines(), Lines(several=True)
    first, rest = SEVERAL.split(b"\r20/20")
    for lines in (alone, several):
        lines.feed(first)
    assert alone.fit == Fit(1, 2, 1, 20, 9.1847)
    assert several.fit == Fit(1, 2, 1, 20)
    several.feed(b"\r20/20" + rest)
    assert several.fit == Fit(2, 2, 16, 20, 0.0361, "", 10.0)
    several.feed(b"\r17/20 [=======================>......] - ETA: 0s - loss: nan\x08")
    assert several.fit == Fit(2, 2, 17, 20, None, "nan", 10.0)


def test_the_pace_is_that_of_the_line() -> None:
    lines = Lines()
    lines.feed((REAL / "keras2-verbose2-val.txt").read_bytes())
    assert lines.fit is not None
    assert lines.fit.steps_per_second == pytest.approx(1 / 0.132)


OTHERS = [
    "Epoch 3/8: loss 0.5",
    "the Epoch 3/8",
    "3/6 of the files",
    "1/2 - 3 apples - loss: 0.5",
    "12/31 10:30:00 started - loss: 1",
    "50/100 [===>....] ETA 3 min",
    "2/2 - 0s - 9ms/step",
    "http://1/2 - 0s - loss: 1",
    "1/2 - 0s - loss: x",
]


@pytest.mark.parametrize("text", OTHERS)
def test_what_others_print_tells_nothing(text: str) -> None:
    lines = Lines()
    lines.feed(text.encode() + b"\n")
    assert lines.fit is None


def test_an_epoch_is_found_far_from_the_end() -> None:
    lines = Lines()
    lines.feed(b"Epoch 1/9\n" + b"x\n" * 9000 + b"Epoch 2/9\n" + b"y\n" * 9000)
    assert lines.fit == Fit(2, 9)
    lines.feed(b"Epoch 3/9\n" + b"the Epoch 4/9\n" + b"y\n" * 9000 + b" 5/6 - 1s - loss: 0.5 - 10ms/step")
    assert lines.fit == Fit(3, 9, 5, 6, 0.5, "", 100.0)


def test_a_flood_without_an_end_is_not_kept() -> None:
    lines = Lines()
    for _ in range(100):
        lines.feed(b"x" * 65536)
    lines.feed(b"\nEpoch 2/3\n4/5 - 0s - loss: 0.5 - 1ms/step\n")
    assert lines.fit == Fit(2, 3, 4, 5, 0.5, "", 1000.0)
    assert json.dumps(lines.fit.__dict__)
