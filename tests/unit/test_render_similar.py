from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.render.similar import merge, shape

BAR = (  # Keras 3
    "\x1b[1m6/6\x1b[0m \x1b[32m\u2501\u2501\x1b[0m\x1b[37m\x1b[0m "
    "\x1b[1m{}\x1b[0m {}/step - accuracy: {} - loss: {}"
)


@pytest.mark.parametrize(
    ("texts", "one"),
    [
        (["Epoch 3/8", "Epoch 3/8"], "Epoch 3/8"),
        (
            [
                "6/6 - 0s - loss: 0.5853 - accuracy: 0.8958 - 398ms/epoch - 66ms/step",
                "6/6 - 1s - loss: 0.5853 - accuracy: 0.8958 - 1s/epoch - 171ms/step",
            ],
            "6/6 - 1s - loss: 0.5853 - accuracy: 0.8958 - 1s/epoch - 171ms/step",
        ),
        (
            ["6/6 - 0s - loss: 0.6101 - 9ms/step", "6/6 - 0s - loss: 0.5853 - 12ms/step"],
            "6/6 - 0s - loss: 0.5853..0.6101 - 12ms/step",
        ),
        (["6/6 - loss: 1.2e-05", "6/6 - loss: 3.4000e-06"], "6/6 - loss: 3.4000e-06..1.2e-05"),
        (["3/6 [==>...] - ETA: 59s - loss: 0.5", "3/6 [==>...] - ETA: 1:02 - loss: 0.5"],
         "3/6 [==>...] - ETA: 1:02 - loss: 0.5"),
        (["step 40 loss 0.3012, 41.2 steps/s", "step 40 loss 0.3012, 9.8 steps/s"],
         "step 40 loss 0.3012, 9.8..41.2 steps/s"),
        ([BAR.format("0s", "7ms", "0.5200", "0.69"), BAR.format("1s", "12ms", "0.5200", "0.71")],
         BAR.format("1s", "12ms", "0.5200", "0.69..0.71")),
        (["Epoch 1, Loss: 0.5000, Accuracy: 0.8", "Epoch 1, Loss: 0.5100, Accuracy: 0.8"],
         "Epoch 1, Loss: 0.5000..0.5100, Accuracy: 0.8"),
        (["start: python 0.2 s, import 6.7 s, data 1 s", "start: python 0.1 s, import 900 ms, data 2 s"],
         "start: python 0.2 s, import 6.7 s, data 2 s"),
        (["took 950us", "took 2ms", "took 1s"], "took 1s"),
    ],
)  # fmt: skip
def test_they_are_one(texts: list[str], one: str) -> None:
    assert len({shape(text) for text in texts if "/" in text or ":" in text}) <= 1
    assert merge(texts) == one


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Epoch 3/8", "Epoch 4/8"),
        ("5/6 - 0s - loss: 0.5", "6/6 - 0s - loss: 0.5"),
        ("6/6 - loss: nan", "6/6 - loss: 0.5"),
        ("listening on port: 2001", "listening on port: 2002"),
        ("gpu: Tesla T4, cuda: 12.1.2", "gpu: Tesla T4, cuda: 11.8.0"),
        ("saved to /ckpt/0.5/a", "saved to /ckpt/0.6/a"),
        ("ValueError: loss: 0.5", "ValueError: loss: 0.6"),
        ("step 1 loss: 0.5", "step 2 loss: 0.5"),
        ("found: 3 sets", "found: 4 sets"),
    ],
)
def test_they_are_two(one: str, other: str) -> None:
    assert shape(one) != shape(other)


PIECES = st.sampled_from(
    [
        "ETA: ",
        "loss: ",
        "loss ",
        " - ",
        "steps/s",
        "/step",
        "ms",
        "s",
        "e",
        "-",
        ".",
        ":",
        "\x1b[1m",
        "\u0663",
        "0",
        "12",
    ]
)


@given(st.lists(PIECES, max_size=12), st.lists(st.sampled_from(["3", "45", "9" * 5000]), max_size=3))
def test_lines_of_one_shape_can_be_merged_whatever_they_hold(pieces: list[str], numbers: list[str]) -> None:
    one = "".join(pieces)
    digits = iter(numbers)
    other = re.sub("0|12", lambda found: next(digits, found.group()), one)
    if shape(one) == shape(other):
        assert shape(merge([one, one])) == shape(one)
        merge([one, other, one])


def test_a_number_without_an_end_is_a_text() -> None:
    merge(["ETA: " + "1" * 5000, "ETA: " + "2" * 5000])
    merge(["loss: " + "1" * 5000 + ".5", "loss: " + "2" * 5000 + ".5"])
    assert shape("ETA: " + "1" * 5000) != shape("ETA: " + "2" * 5000)
