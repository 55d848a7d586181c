from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.run.lines import CAP, Splitter


def texts(data: bytes) -> list[str]:
    splitter = Splitter("worker/1", "gpu-02")
    return [line.text for line in [*splitter.feed(data), *splitter.end()]]


STREAMS = [
    (b"", []),
    (b"one\ntwo\n", ["one", "two"]),
    (b"\n\n", ["", ""]),
    (b"no newline", ["no newline"]),
    (b"dos\r\nlines\r\r\n", ["dos", "lines"]),
    (b"\r1/5 =\r2/5 ==\r5/5 =====\ndone\n", ["5/5 =====", "done"]),
    (b"\r1/5 =\r2/5 ==", ["2/5 =="]),
    (b"bar\r", ["bar"]),
    (b"\r\n\r", [""]),
    (b"\r     \rINFO cleared bar\n", ["INFO cleared bar"]),
    (b"bad \xff\xc3\nnext \xc3\xa9\n", ["bad \ufffd\ufffd", "next é"]),
    (b"page\x0cone\x1cx\xc2\x85y\xe2\x80\xa8z\n", ["page␌one␜x\\u0085y\\u2028z"]),
    (b"nul\0\n", ["nul␀"]),
    (b"\x1b[2J\x1b[31mred\x1b[0m\n", ["\x1b[31mred\x1b[0m"]),
    (b"x" * CAP + b"\n", ["x" * CAP]),
    (b"x" * (CAP + 1) + b"\nnext\n", ["x" * CAP + " … (1 more bytes)", "next"]),
    (b"y" * 1_000_000, ["y" * CAP + " … (991,808 more bytes)"]),
    (b"y" * 1_000_000 + b"\rshort\n", ["short"]),
    (b"x" * (CAP - 1) + "é".encode() + b"\n", ["x" * (CAP - 1) + " … (2 more bytes)"]),
    (b"x" * (CAP - 1) + b"\xc3", ["x" * (CAP - 1) + "\ufffd"]),
]


@pytest.mark.parametrize(("data", "expected"), STREAMS)
def test_a_stream_is_these_lines(data: bytes, expected: list[str]) -> None:
    assert texts(data) == expected


@pytest.mark.parametrize("data", [data for data, _ in STREAMS if len(data) < 200])
def test_a_cut_at_any_byte_changes_nothing(data: bytes) -> None:
    times = [(offset, offset * 10**9) for offset in range(len(data))]
    whole = Splitter("worker/1", "gpu-02")
    expected = [*whole.feed(data, times), *whole.end()]
    for cut in range(len(data) + 1):
        halves = Splitter("worker/1", "gpu-02")
        assert [
            *halves.feed(data[:cut], times[:cut]),
            *halves.feed(data[cut:], times[cut:]),
            *halves.end(),
        ] == expected


def test_usual_lines_of_one_time_come_as_one() -> None:
    splitter = Splitter("worker/1", "gpu-02")
    times = [(0, 1 * 10**9), (5, 2 * 10**9), (12, 3 * 10**9)]
    blocks = [*splitter.feed_blocks(b"a\nb\nc\nd\ne\nf\ng", times), *splitter.feed_blocks(b"\nh\n")]
    assert [(line.text, line.sent) for line in blocks] == [
        ("a\nb\nc", 1.0),
        ("d\ne\nf", 2.0),
        ("g", 3.0),
        ("h", 3.0),
    ]


@given(
    st.lists(
        st.sampled_from([b"usual\n", b"bar 1\rbar 2\n", b"\xc3\xa9\n", b"\n", b"half", b"x" * CAP]),
        max_size=9,
    ),
    st.integers(1, 40),
)
def test_blocks_are_the_same_lines_with_the_same_times(pieces: list[bytes], step: int) -> None:
    data = b"".join(pieces)
    times = [(offset, offset * 10**9) for offset in range(0, len(data), step)]
    one, other = Splitter("t", "h"), Splitter("t", "h")
    lines = [*one.feed(data, times), *one.end()]
    middle = len(data) // 2
    blocks = [*other.feed_blocks(data[:middle], times), *other.feed_blocks(data[middle:]), *other.end()]
    split = [(text, line.sent) for line in blocks for text in line.text.split("\n")]
    assert split == [(line.text, line.sent) for line in lines]


PIECES = st.sampled_from(
    [
        b"a",
        b"bc",
        b"\n",
        b"\r",
        b"\r\n",
        b"\xc3\xa9",
        b"\xc3",
        b"\xff",
        b"\x1b[31m",
        b"\x1b[2",
        b"J",
        b"\0",
        b" ",
        b"x" * 5000,
    ]
)


@given(st.lists(PIECES), st.lists(st.integers(0, 30_000)))
def test_any_cuts_change_nothing(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pieces)
    times = [(offset, offset * 10**9) for offset in range(0, len(data), 7)]
    whole = Splitter("worker/1", "gpu-02")
    expected = [*whole.feed(data, times), *whole.end()]
    parts = Splitter("worker/1", "gpu-02")
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    lines = []
    for begin, end in itertools.pairwise(places):
        lines += parts.feed(data[begin:end], [record for record in times if begin <= record[0] < end])
    assert [*lines, *parts.end()] == expected


def test_a_line_has_the_time_of_what_it_shows() -> None:
    splitter = Splitter("worker/1", "gpu-02", offset=100, clock=0.5)
    lines = splitter.feed(b"one\n1/2\r2/2\n", [(100, 10 * 10**9), (104, 20 * 10**9), (108, 30 * 10**9)])
    assert [(line.text, line.sent) for line in lines] == [("one", 9.5), ("2/2", 29.5)]
    assert [line.sent for line in splitter.feed(b"much later\n", [(90, 0)])] == [29.5]


def test_bytes_without_a_record_have_no_time() -> None:
    assert [line.sent for line in Splitter("worker/1", "gpu-02").feed(b"x\n")] == [0.0]


def test_lines_name_their_task_and_host() -> None:
    line = Splitter("ps/0", "gpu-02").feed(b"x\n")[0]
    assert (line.task, line.host) == ("ps/0", "gpu-02")
