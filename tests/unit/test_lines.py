"""Output split into lines, and parsed output of Keras 2 (tf_keras 2.21) and Keras 3.12 (keras/)."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from orchestrator.run.fitlines import Fit, Lines
from orchestrator.run.lines import CAP, Splitter
from tests.golden import matches_golden


def texts(data: bytes) -> list[str]:
    splitter = Splitter("worker/1", "gpu-02")
    return [line.text for line in [*splitter.feed(data), *splitter.end()]]


STREAMS = [
    (b"one\ntwo\n", ["one", "two"]),
    (b"dos\r\nlines\r\r\n", ["dos", "lines"]),
    (b"\r1/5 =\r2/5 ==\r5/5 =====\ndone\n", ["5/5 =====", "done"]),
    (b"\r\n\r", [""]),
    (b"\r     \rINFO cleared bar\n", ["INFO cleared bar"]),
    (b"bad \xff\xc3\nnext \xc3\xa9\n", ["bad \ufffd\ufffd", "next é"]),
    (b"x" * CAP + b"\n", ["x" * CAP]),
    (b"x" * (CAP + 1) + b"\nnext\n", ["x" * CAP + " … (1 more bytes)", "next"]),
    (b"y" * 1_000_000, ["y" * CAP + " … (991,808 more bytes)"]),
    (b"y" * 1_000_000 + b"\rshort\n", ["short"]),
    (b"x" * (CAP - 1) + "é".encode() + b"\n", ["x" * (CAP - 1) + " … (2 more bytes)"]),
    (b"x" * (CAP - 1) + b"\xc3", ["x" * (CAP - 1) + "\ufffd"]),
]


@pytest.mark.parametrize(("data", "expected"), STREAMS)
def test_a_stream_is_split_into_lines(data: bytes, expected: list[str]) -> None:
    assert texts(data) == expected


PIECES = st.sampled_from(
    [
        *(b"a", b"bc", b"\n", b"\r", b"\r\n", b"\xc3\xa9", b"\xc3", b"\xff"),
        *(b"\x1b[31m", b"\x1b[2", b"J", b"\0", b" ", b"x" * 5000),
    ]
)


@given(st.lists(PIECES), st.lists(st.integers(0, 30_000)), st.integers(1, 40))
def test_chunks_change_neither_lines_nor_times(pieces: list[bytes], cuts: list[int], step: int) -> None:
    data = b"".join(pieces)
    times = [(offset, offset * 10**9) for offset in range(0, len(data), step)]
    whole, parts, blocks = (Splitter("worker/1", "gpu-02") for _ in range(3))
    expected = [*whole.feed(data, times), *whole.end()]
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    lines, joined = [], []
    for begin, end in itertools.pairwise(places):
        known = [record for record in times if begin <= record[0] < end]
        lines += parts.feed(data[begin:end], known)
        joined += blocks.feed_blocks(data[begin:end], known)
    assert [*lines, *parts.end()] == expected
    split = [(text, line.sent) for line in [*joined, *blocks.end()] for text in line.text.split("\n")]
    assert split == [(line.text, line.sent) for line in expected]


def test_a_line_has_the_time_of_its_visible_text() -> None:
    splitter = Splitter("worker/1", "gpu-02", offset=100, clock=0.5)
    lines = splitter.feed(b"one\n1/2\r2/2\n", [(100, 10 * 10**9), (104, 20 * 10**9), (108, 30 * 10**9)])
    assert [(line.text, line.sent) for line in lines] == [("one", 9.5), ("2/2", 29.5)]
    assert [line.sent for line in splitter.feed(b"much later\n", [(90, 0)])] == [29.5]


REAL = Path(__file__).parent / "keras"


def test_keras_output_is_parsed() -> None:
    """For each file, the reported positions and the final loss."""
    text = ""
    for path in sorted(REAL.glob("*.txt")):
        lines = Lines()
        seen: list[str] = []
        # As it arrives: one redraw or line at a time.
        for piece in path.read_bytes().replace(b"\r", b"\n\r").split(b"\n"):
            lines.feed(piece + b"\n")
            place = f"{lines.fit.epoch}: {lines.fit.step}/{lines.fit.steps}" if lines.fit else ""
            seen += [place] if place and place not in seen[-1:] else []
        assert lines.fit is not None
        text += f"{path.stem}: {', '.join(seen)}; loss {lines.fit.loss}{lines.fit.diverged}\n"
    matches_golden("keras.txt", text)


@pytest.mark.parametrize("name", ["keras2-verbose1-val", "keras3-verbose1-gen"])
def test_keras_output_is_parsed_at_any_chunk_boundary(name: str) -> None:
    data = (REAL / f"{name}.txt").read_bytes()
    whole = Lines()
    whole.feed(data)
    for size in (1, 7, 64):
        cut = Lines()
        for start in range(0, len(data), size):
            cut.feed(data[start : start + size])
        assert cut.fit == whole.fit


# From four tasks that trained together (tf_keras 2.21): the sum, then each task's own value.
SEVERAL = (
    b"Epoch 1/2\n"
    b"\r 1/20 [>.............................] - ETA: 2s - loss: 9.1847 - accuracy: 0.1844\x08\x08"
    b"\r20/20 [==============================] - 2s 100ms/step - loss: 0.0361 - accuracy: 0.9955\n"
    b"Epoch 2/2\n"
    b"\r16/20 [=======================>......] - ETA: 0s - loss: 0.1485 - accuracy: 3.9805\x08\x08"
)


def test_a_sum_over_all_tasks_is_not_taken_for_a_loss() -> None:
    alone, several = Lines(), Lines(several=True)
    first, rest = SEVERAL.split(b"\r20/20")
    for lines in (alone, several):
        lines.feed(first)
    assert alone.fit == Fit(1, 2, 1, 20, 9.1847, metrics={"accuracy": 0.1844})
    assert several.fit == Fit(1, 2, 1, 20, summed=True)
    assert [fit.loss for _, fit in several.feed(b"\r20/20" + rest)] == [0.0361]  # without a sum
    assert several.fit == Fit(2, 2, 16, 20, 0.0361, "", 10.0, {"accuracy": 0.9955}, summed=True)
    several.feed(b"\r17/20 [=======================>......] - ETA: 0s - loss: nan\x08")
    assert several.fit == Fit(2, 2, 17, 20, None, "nan", 10.0)


OTHERS = [
    "the Epoch 3/8",
    "3/6 of the files",
    "1/2 - 3 apples - loss: 0.5",
    "50/100 [===>....] ETA 3 min",
    "2/2 - 0s - 9ms/step",
    "1/2 - 0s - loss: x",
]


@pytest.mark.parametrize("text", OTHERS)
def test_output_of_other_programs_is_not_parsed(text: str) -> None:
    lines = Lines()
    lines.feed(text.encode() + b"\n")
    assert lines.fit is None


def test_an_endless_line_is_not_kept() -> None:
    lines = Lines()
    for _ in range(100):
        lines.feed(b"x" * 65536)
    lines.feed(b"\nEpoch 2/3\n4/5 - 0s - loss: 0.5 - 1ms/step\n")
    assert lines.fit == Fit(2, 3, 4, 5, 0.5, "", 1000.0)
    assert json.dumps(asdict(lines.fit))
