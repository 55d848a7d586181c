"""Input from outside: frames, names, and replies that many threads decode at once."""

import itertools
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import wire
from orchestrator.fleet import session as sessions
from orchestrator.names import AttemptName, NotANameError, RunId
from orchestrator.node.serve import frames
from orchestrator.wire.message import header
from tests import fuzz
from tests.node.test_wire_contract import Said

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
def test_any_split_of_a_stream_yields_the_sent_frames(
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
def test_anything_but_a_frame_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError):
        list(frames.Decoder().feed(bad))


def test_frames_the_other_end_would_refuse_are_never_created() -> None:
    with pytest.raises(ValueError):
        frames.encode({"x": "y" * frames.MAX_HEADER})
    with pytest.raises(ValueError):
        frames.encode({}, bytes(frames.MAX_PAYLOAD + 1))


ROOT = Path(__file__).parents[2]

# Without `_prepare` of wire/message.py one process in four died of SIGSEGV.
PROGRAM = """
import sys, threading
from orchestrator import wire
from orchestrator.fleet import session as sessions
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


def test_threads_can_decode_a_new_type_at_once() -> None:
    for _ in range(8):
        done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")


NO_RUNS = ("", "..", "a/b", "a\0b", "a\n", "a b", ".a", "-rf", "\u00e4", "a" * 65, "a\x1b[31m")
NO_ATTEMPTS = ("0", "01", "-1", "1.", "\u00b2", "1234567", "validate-", "1-1", "a")


@pytest.mark.parametrize(
    ("kind", "text"), [*((RunId, text) for text in NO_RUNS), *((AttemptName, text) for text in NO_ATTEMPTS)]
)
def test_invalid_names(kind: type[RunId], text: str) -> None:
    with pytest.raises(NotANameError):
        kind(text)


@pytest.mark.parametrize("text", ["1", "12", "validate", "validate-2", "validate-2-1"])
def test_valid_attempt_names(text: str) -> None:
    assert AttemptName(text) == text


# --- replies that match their request, and others ---

RUN: dict[str, Any] = {"run": "r", "plan": None, "keeper": None, "stopped": False, "tasks": []}
OTHER = {**RUN, "run": "s"}
TREE, ANOTHER = "ab" * 16, "cd" * 16
WORK: dict[str, Any] = {"work": "/w", "missing": [TREE], "made": True}
MAKE: dict[str, Any] = {"workdir": "/w", "run": "r", "digest": TREE, "also": []}
HAD = {**WORK, "had": {"program": True, "paths": [0]}}
NEEDS = wire.JobNeeds(program="sh", python="p", setup=None, paths=["/a"])
LOOKED: dict[str, Any] = {"setup": None, "env": {}, "python": "p"}
IMPORTED = {"gpus": None, "built": "", "importing": "", "ended": "", "signal": None}
PROBED = {
    "tcp": True,
    "tcp_ms": 1.0,
    "why": "",
    "icmp": None,
    "resolved": "",
    "large": None,
    "large_ms": None,
}
VITALS = {"task": "worker/0", "cpu": 1.0, "memory": 1, "gpu_memory": None, "gpu_busy": None}


def begun(**fields: Any) -> dict[str, Any]:
    return {"present": True, "path": "/p", "bits": "3", **fields}


# (request, matching reply, replies that our agent would not give)
ANSWERS: list[tuple[wire.Request[Any], dict[str, Any], list[object]]] = [
    (wire.States(run="r"), {"runs": [RUN]}, [{"runs": [OTHER]}, {"runs": [RUN, RUN]}, [], None, {"runs": 1}]),
    (wire.States(run=None), {"runs": [RUN, OTHER]}, [{"runs": [OTHER, OTHER]}, {"runs": [RUN], "more": -1}]),
    (
        wire.Listen(run="r", ports=[1, 2], nonce="n", host="a"),
        {"listening": [2], "busy": [{"port": 1, "holder": "x"}]},
        [{"listening": [2], "busy": []}, {"listening": [1, 2, 3], "busy": []}],
    ),
    (
        wire.Lease(run="r", owner="me", machine="", since=1.0, ports={"1": "worker/0"}),
        {"conflicts": [{"port": 1, "run": "s", "task": None, "owner": None}]},
        [{"conflicts": [{"port": 2, "run": "s", "task": None, "owner": None}]}],
    ),
    (
        wire.Imports(**LOOKED, modules=["a"]),
        {**IMPORTED, "modules": [{"name": "a", "version": "", "error": ""}]},
        [{**IMPORTED, "modules": [{"name": "b", "version": "", "error": ""}]}],
    ),
    (
        wire.Probe(nonce="n", timeout=1.0, targets=[wire.ProbeTarget("a", "10.0.0.1", 1)]),
        {"results": [{**PROBED, "host": "a"}]},
        [{"results": [{**PROBED, "host": "b"}]}, {"results": []}],
    ),
    (
        wire.StoreBegin(path="/p", mutable=False, pieces=2, run="r"),
        begun(),
        [begun(bits="4"), begun(bits="10"), begun(incoming="/i"), begun(present=False), begun(bits="x")],
    ),
    (
        wire.StoreHave(path="/p", count=2),
        {"bits": "1", "idle": True, "trouble": ""},
        [{"bits": "4", "idle": True, "trouble": ""}],
    ),
    (
        wire.WorkMake(**MAKE),
        WORK,
        [{**WORK, "missing": [ANOTHER]}, {**WORK, "had": {"program": True, "paths": []}}],
    ),
    (wire.WorkMake(**MAKE, needs=NEEDS), HAD, [WORK, {**WORK, "had": {"program": True, "paths": [1]}}]),
    (wire.FilesGet(root="/r", parts=2, growing=False), {"gone": [1]}, [{"gone": [2]}, {"gone": [1, 1]}]),
    (
        wire.Follow(run="r", attempt="1", tasks=[wire.From("worker/0", 0, 0)]),
        {"missing": ["worker/0"]},
        [{"missing": ["worker/1"]}],
    ),
    (
        wire.VitalsAsk(run="r", attempt="1"),
        {"tasks": [{**VITALS, "attempt": "1"}]},
        [{"tasks": [{**VITALS, "attempt": "2"}]}],
    ),
]


@pytest.mark.parametrize(("question", "good", "bad"), ANSWERS, ids=lambda one: getattr(one, "OP", ""))
def test_a_mismatched_reply_is_refused(
    question: wire.Request[Any], good: dict[str, Any], bad: list[object]
) -> None:
    read = msgspec.json.decode(msgspec.json.encode(wire.answer(question, good, b"x")))
    assert {name: read[name] for name in good} == good
    for one in bad:
        with pytest.raises(wire.ProtocolError, match=f"the answer to `{question.OP}`: ") as refused:
            wire.answer(question, one, b"x")
        assert len(str(refused.value)) <= 300


def test_overlong_text_is_cut_to_a_line() -> None:
    assert len(str(wire.ProtocolError("x" * 999))) == 300
    names = os.fsdecode(b"\xff"), "\u00e9"
    for name in names:
        sent = json.loads(header(7, wire.StoreLook(path=name)))
        assert sent == {"id": 7, "op": "store_look", "path": name}


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (None, "a process that this login may not see"),
        ("nginx", "nginx"),
        (wire.Lessee(run=None, task=None, owner=None), "another run"),
        (wire.Lessee(run="r1", task="worker/0", owner="ada@home"), "worker/0 of run r1 (ada@home)"),
    ],
)
def test_the_process_holding_a_port(holder: wire.Lessee | str | None, words: str) -> None:
    assert wire.Busy(port=1, holder=holder).words == words


def test_a_task_that_was_never_started_has_no_pid() -> None:
    phases = (wire.TaskPhase.RUNNING, 7), (wire.TaskPhase.RUNNING, None), (wire.TaskPhase.UNSTARTED, 7)
    assert [wire.TaskRecord(state=phase, pid=pid).started_as for phase, pid in phases] == [7, 0, 0]


# --- the short form of scripts/fuzz: any input raises only our own errors ---

SEEDS = st.integers(0, 2**64)
MANY = settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[Said]]:
    return fuzz.conversation(tmp_path_factory.mktemp("lab"))


@MANY
@given(seed=SEEDS)
def test_a_controller_survives_any_agent_output(
    recorded: tuple[dict[str, Any], list[Said]], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(sessions, "log", sessions.log)  # which `play` replaces
    fuzz.play(random.Random(seed), *recorded)


@pytest.mark.parametrize("kind", fuzz.READERS)
@MANY
@given(seed=SEEDS)
def test_damaged_lines_are_refused(kind: str, seed: int) -> None:
    fuzz.read(random.Random(seed), kind)
