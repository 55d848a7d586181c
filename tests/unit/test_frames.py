"""Frames: what goes in comes out, whatever the network does to the boundaries."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.serve import frames

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_FRAMES = st.tuples(st.dictionaries(st.text(), _VALUES, max_size=4), st.binary(max_size=200))


def fed(pieces: list[bytes]) -> list[frames.Frame]:
    decoder = frames.Decoder()
    return [frame for piece in pieces for frame in decoder.feed(piece)]


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(sent=st.lists(_FRAMES, max_size=5), cuts=st.lists(st.integers(min_value=0), max_size=12))
def test_any_split_of_any_stream_gives_the_frames_that_were_sent(
    sent: list[tuple[dict[str, Any], bytes]], cuts: list[int]
) -> None:
    stream = b"".join(frames.encode(header, payload) for header, payload in sent)
    assert fed(split(stream, cuts)) == sent


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack(">II", frames.MAX_HEADER + 1, 0),
        struct.pack(">II", 2, frames.MAX_PAYLOAD + 1),
        b"Welcome to gpu-01, have a nice day\n",
        struct.pack(">II", 2, 0) + b"[]",
        struct.pack(">II", 2, 0) + b"{x",
        struct.pack(">II", 4, 0) + b'"\xff"x',
        struct.pack(">II", 0, 0),
    ],
)
def test_what_is_not_a_frame_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError):
        frames.Decoder().feed(bad)


def test_a_frame_that_the_other_end_would_refuse_is_never_made() -> None:
    with pytest.raises(ValueError):
        frames.encode({"x": "y" * frames.MAX_HEADER})
    with pytest.raises(ValueError):
        frames.encode({}, bytes(frames.MAX_PAYLOAD + 1))


def test_a_large_payload_in_small_pieces_takes_no_quadratic_time() -> None:
    stream = frames.encode({}, bytes(16 << 20))
    decoder = frames.Decoder()
    out = [frame for i in range(0, len(stream), 4096) for frame in decoder.feed(stream[i : i + 4096])]
    assert [len(payload) for _, payload in out] == [16 << 20]
