"""What comes from outside: frames, names, and answers that many threads read at once."""

from __future__ import annotations

import itertools
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.names import AttemptName, NotANameError, RunId
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
        struct.pack(">II", 4, 0) + b'"\xff"x',
        struct.pack(">II", 0, 0),
    ],
)
def test_what_is_not_a_frame_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError):
        list(frames.Decoder().feed(bad))


def test_a_frame_that_the_other_end_would_refuse_is_never_made() -> None:
    with pytest.raises(ValueError):
        frames.encode({"x": "y" * frames.MAX_HEADER})
    with pytest.raises(ValueError):
        frames.encode({}, bytes(frames.MAX_PAYLOAD + 1))


ROOT = Path(__file__).parents[2]

# Without `_prepare` of wire/message.py one process in four ended by SIGSEGV.
PROGRAM = """
import sys, threading
from orchestrator import wire
sys.setswitchinterval(1e-6)
state = {"state": "running", "pid": 1, "gaps": [{"bytes": 1}], "oom_kills": 1}
task = {"attempt": "1", "task": "worker/0", "state": state, "alive": True}
run = {"run": "r", "plan": None, "keeper": {"who": "x"}, "stopped": False, "tasks": [task]}
news = {"stream": 1, "attempt": "1", "task": "worker/0", "state": state}
for kind, data in [
    (wire.Keeping, {"granted": True, "holder": {"who": "x", "alive": True}}),
    (wire.Runs, {"runs": [run]}),
    (wire.StateNews, news),
]:
    barrier = threading.Barrier(16)
    read = lambda: (barrier.wait(), wire.read(data, kind, "x"))
    threads = [threading.Thread(target=read) for _ in range(16)]
    [one.start() for one in threads]
    [one.join() for one in threads]
"""


def test_threads_that_meet_a_type_at_once() -> None:
    for _ in range(8):
        done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")


NO_RUNS = ("", "..", "a/b", "a\0b", "a\n", "a b", ".a", "-rf", "\u00e4", "a" * 65, "a\x1b[31m")
NO_ATTEMPTS = ("0", "01", "-1", "1.", "\u00b2", "1234567", "validate-", "1-1", "a")


@pytest.mark.parametrize(
    ("kind", "text"), [*((RunId, text) for text in NO_RUNS), *((AttemptName, text) for text in NO_ATTEMPTS)]
)
def test_what_is_no_name_of_a_kind(kind: type[RunId], text: str) -> None:
    with pytest.raises(NotANameError):
        kind(text)


@pytest.mark.parametrize("text", ["1", "12", "validate", "validate-2", "validate-2-1"])
def test_what_is_the_name_of_an_attempt(text: str) -> None:
    assert AttemptName(text) == text
