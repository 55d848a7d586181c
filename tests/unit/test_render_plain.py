import contextlib
import io
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import events as ev
from orchestrator.events import Event, Level, LogLine, Outcome, Phase, Stamped
from orchestrator.render import Look
from orchestrator.render.errors import coloured
from orchestrator.render.folding import MOMENT, Folded, Folding, Shown
from orchestrator.render.grid import QUOTE, wrapped
from orchestrator.render.live import Live, Paint
from orchestrator.render.plain import Plain
from orchestrator.render.summary import summary
from orchestrator.run.view import replay
from orchestrator.text import plain
from tests.golden import matches_golden

PLAN = ev.RunPlanned(
    run="tidy-otter",
    name="mnist",
    owner="ann@laptop",
    command=("train.py", "--note", "a b"),
    tasks=(("worker/0", "gpu-01"), ("worker/1", "gpu-2"), ("ps/10", "cpu")),
    notes=("TF_USE_LEGACY_KERAS=1 is set",),
    folder="/runs/tidy-otter",
)


def exited(task: str, host: str, **more: Any) -> ev.TaskExited:
    how = {"code": None, "signal": None, "lost": "", "seconds": 41.2, "ended": 0.0, "stopped": False}
    return ev.TaskExited(task=task, host=host, attempt="1", **(how | more))


def shown(*events: Event) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    renderer = Plain(out, err)
    for at, event in enumerate(events):
        renderer.handle(Stamped(float(at), event))
    renderer.close()
    return out.getvalue(), err.getvalue()


def test_a_command_of_any_length_is_one_readable_line() -> None:
    _, err = shown(ev.RunPlanned("r1", "", "", ("train.py", *["--x"] * 9999), (("worker/0", "a"),), (), ""))
    assert err.startswith("run r1: 1 task on 1 host: train.py --x --x ")
    assert err.endswith("\u2026\n")
    assert len(err) < 1100


def test_the_output_of_a_failing_run() -> None:
    rsync = ("rsync", Level.WARN, "not found", "files go as a tar stream", "apt install rsync")
    out, err = shown(
        PLAN,
        ev.PhaseStarted(Phase.CONNECT, 3),
        ev.HostConnected("gpu-01", 0.1),
        ev.PhaseEnded(Phase.CONNECT, ok=True, seconds=0.25),
        ev.PhaseStarted(Phase.PREFLIGHT, 3),
        ev.CheckReported("gpu-01", *rsync),
        ev.CheckReported("gpu-2", *rsync),
        ev.CheckReported("cpu", "python", Level.OK, "3.11.2"),
        ev.PhaseEnded(Phase.PREFLIGHT, ok=True, seconds=0.9),
        ev.PhaseStarted(Phase.STAGE, 3),
        ev.TreeSynced("gpu-01", "d1", 132, 1_200_000, 0.4, reused=False),
        ev.TreeSynced("gpu-2", "d1", 132, 0, 0.1, reused=True),
        ev.PhaseEnded(Phase.STAGE, ok=True, seconds=0.8),
        ev.PhaseStarted(Phase.VALIDATE, 3),
        ev.ValidationStood(("gpu-01", "gpu-2"), 11_000.0),
        ev.HostValidated("gpu-01", "digits", 2.31, 41.25, 6.0),
        ev.Stepped("worker/1", "mnist: downloads", 4_200_000, 11_594_722),
        ev.HostValidated("gpu-2", "digits", 2.31, 40.0, 7.0),
        ev.HostValidated("cpu", "", None, None, 6.0),
        ev.PhaseEnded(Phase.VALIDATE, ok=True, seconds=6.1),
        ev.PhaseStarted(Phase.FOLLOW, 3),
        ev.TaskStarted("worker/0", "gpu-01", "1", 4242),
        ev.TaskReady("worker/0", ""),
        ev.LogLine("worker/0", "gpu-01", "\x1b[31m[bold]Epoch[/foo]\x1b[0m :warning:", 1.0),
        ev.LogLine("worker/1", "gpu-2", "Epoch 1/3", 1.0),
        ev.LogLine("ps/10", "cpu", "", 1.0),
        ev.TaskProgressed("worker/0", 5, 0.5, 10.0),
        ev.LogGap("worker/1", ev.GapPlace.NODE, 1024, "No space left on device"),
        ev.LogGap("worker/0", ev.GapPlace.CONTROLLER, 2048, "not fetched: the rest of its log is on gpu-01"),
        ev.HostLost("cpu", "no heartbeat for 15 s"),
        ev.HostRecovered("cpu", 20.0),
        ev.HangSuspected(ev.HangKind.SILENT, ("worker/0", "worker/1"), 600.0),
        ev.StacksTaken(
            ("worker/1",), "worker/1 on gpu-2 hangs at t\x1b[2J.py:9 in nap", "/r/1.txt", ("cpu",), 0.4
        ),
        ev.HangPassed(70.0),
        exited("worker/1", "gpu-2", signal=9),
        ev.StopRequested(ev.StopBy.FAILURE, "worker/1 on gpu-2 was killed by SIGKILL", 2.0),
        exited("worker/0", "gpu-01", signal=15, stopped=True, seconds=43.0),
        exited("ps/10", "cpu", lost="the guard is gone"),
        ev.RunEnded(
            "tidy-otter",
            Outcome.FAILED,
            1,
            52.0,
            "worker/1 on gpu-2 was killed by SIGKILL after 41 s",
            "worker/1",
            ("Epoch 1/3", "step \x1b[2J5"),
            "/runs/tidy-otter",
            "look into dmesg on gpu-2",
            attempts=3,
        ),
    )
    matches_golden("render/failed_run.txt", f"{out}--- stderr\n{err}")


def test_a_run_s_start_is_one_line_where_that_is_enough() -> None:
    out, err = io.StringIO(), io.StringIO()
    renderer = Plain(out, err, Look(brief=True))
    phase: list[Event] = [ev.PhaseStarted(Phase.STAGE, 3), ev.PhaseEnded(Phase.STAGE, ok=True, seconds=0.8)]
    started = ev.TaskStarted("worker/0", "gpu-01", "1", 1)
    for event in (PLAN, ev.Noted("left out: data"), *phase, started, ev.Noted("the chief is saved")):
        renderer.handle(Stamped(1.0, event))
    renderer.handle(Stamped(1.0, ev.PhaseEnded(Phase.STAGE, ok=False, seconds=0.8)))
    assert err.getvalue().splitlines() == [
        "run tidy-otter (mnist): 3 tasks on 3 hosts: train.py --note 'a b'",
        "note: the chief is saved",
        "stage: failed after 0.8 s",
    ]


def test_characters_missing_from_the_encoding_are_escaped(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as out:
        renderer = Plain(out, io.StringIO())
        renderer.handle(Stamped(1.0, ev.LogLine("worker/0", "g", "gr\xf6\xdfer", 1.0)))
        renderer.tick()
    assert (tmp_path / "out").read_bytes() == b"worker/0 g | gr\\xf6\\xdfer\n"


def test_a_non_blocking_pipe_gets_every_byte() -> None:
    script = """
import os, sys
sys.path[:0] = [sys.argv[1]]
from orchestrator.render.sink import Sink
os.set_blocking(1, False)
Sink(sys.stdout).write("x" * 1_000_000)
"""
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", script, root], check=True, capture_output=True, timeout=60)
    assert len(done.stdout) == 1_000_000


def test_every_line_of_a_fast_log_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    far, near = os.openpty()
    raw = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # closed
            while data := os.read(far, 65536):
                raw.extend(data)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with os.fdopen(near, "w", encoding="utf-8") as stream:
        display = Live(stream)
        events: list[Event] = [PLAN]
        events += [ev.LogLine("worker/0", "gpu-01", f"line {number}", 0.0) for number in range(5_000)]
        for event in events:
            display.handle(Stamped(time.time(), event))
        display.close()
    reader.join(20)
    os.close(far)
    bare = re.sub(r"\x1b\[[?\d;]*\w", "", raw.decode())
    shown = re.findall(r"worker/0 gpu-01 \| (line \d+)\r?\n", bare)
    assert shown == [f"line {number}" for number in range(5_000)]


def test_a_quoted_line_keeps_its_bar() -> None:
    text = QUOTE + '  File "/home/train/work/runs/x/work/train.py", line 6, in <module>'
    rows = wrapped([text, QUOTE + "^" * 60, QUOTE.rstrip()], 40)
    assert all(row.startswith(QUOTE.rstrip()) and len(row) <= 40 for row in rows)
    assert rows[0].startswith(QUOTE + "  File")
    assert rows[-1] == QUOTE.rstrip()
    assert "".join(row.removeprefix(QUOTE) for row in rows[:-3]).replace(" ", "") == text[6:].replace(" ", "")


def test_a_task_s_line_wraps_between_words() -> None:
    paint = Paint()
    paint.learn(replay([Stamped(1.0, ev.TaskStarted(f"worker/{n}", f"gpu-0{n}", "1", 1)) for n in range(2)]))
    text = "20/20 [========] - 2s 105ms/step - loss: \x1b[1m8.0570e-05\x1b[0m - accuracy: 1.0000"
    line = LogLine("worker/0", "gpu-00", text, 1.0)
    rows = [row.plain for row in paint.lines_of(line, 50)]
    assert rows == [
        "worker/0 gpu-00 | 20/20 [========] - 2s 105ms/step",
        "                | - loss: 8.0570e-05 - accuracy:",
        "                | 1.0000",
    ]
    assert paint.lines_of(line)[0].plain == "worker/0 gpu-00 | " + plain(text)
    (row,) = paint.lines_of(line, 30)  # no room for text
    assert row.plain == paint.lines_of(line)[0].plain


def test_the_outcome_of_a_run_is_colored() -> None:
    assert coloured("run r1 succeeded after 3 s") == "run r1 \x1b[1;32msucceeded\x1b[0m after 3 s"
    assert coloured("run r1 failed after 3 s") == "run r1 \x1b[1;31mfailed\x1b[0m after 3 s"
    assert coloured("run r1 was stopped after 3 s") == "run r1 was stopped after 3 s"


@pytest.mark.parametrize(
    ("name", "host", "last"),
    [
        ("night", "gpu-1", "`orchestrate report night` writes a page, `orchestrate pull night` fetches what"),
        ("", "gpu-1", "`orchestrate report r1` writes a page, `orchestrate pull r1` fetches what"),
        ("night", "rehearsal-01", "`orchestrate report night` writes a page"),
        ("a b", "gpu-1", "`orchestrate report 'a b'` writes a page, `orchestrate pull 'a b'` fetches what"),
        ("-n", "gpu-1", "`orchestrate report r1` writes a page, `orchestrate pull r1` fetches what"),
    ],
)
def test_the_last_line_of_a_run_suggests_the_next_command(name: str, host: str, last: str) -> None:
    planned = ev.RunPlanned("r1", name, "ann@laptop", ("t.py",), (("worker/0", host),), (), "/runs/r1")
    ended = ev.RunEnded("r1", ev.Outcome.SUCCEEDED, 0, 1.0, "", "", (), "/runs/r1")
    story: list[Event] = [planned, ev.TaskStarted("worker/0", host, "1", 1), ended]
    message = summary(replay([Stamped(1.0, event) for event in story]))[-1]
    assert message.removesuffix(" the tasks wrote") == f"more: {last}"


# --- Equal lines of several tasks are folded into one ---


def line(task: int, text: str, sent: float = 100.0) -> LogLine:
    return LogLine(f"worker/{task}", f"gpu-{task}", text, sent)


def started(count: int) -> Folding:
    folding = Folding()
    for task in range(count):
        folding.note(ev.TaskStarted(f"worker/{task}", f"gpu-{task}", "1", 1), aloud=False)
    return folding


def words(shown: list[Shown]) -> list[tuple[str, str]]:
    return [(f"{','.join(one.tasks)}" if isinstance(one, Folded) else one.task, one.text) for one in shown]


def feed(folding: Folding, *lines: LogLine, now: float = 0.0) -> list[tuple[str, str]]:
    return words([shown for one in lines for shown in folding.add(one, one.sent, now)])


ALL = "worker/0,worker/1,worker/2"


def test_a_line_from_one_task_is_held_briefly() -> None:
    folding = started(3)
    assert feed(folding, line(1, "saved"), now=7.0) == []
    assert folding.tick(7.0 + MOMENT / 2) == []
    assert words(folding.tick(7.0 + MOMENT)) == [("worker/1", "saved")]


def test_lines_written_far_apart_are_not_folded_however_fast_they_are_read() -> None:
    folding = started(3)
    assert feed(folding, line(0, "a", 100.0), line(1, "a", 100.0 + 2 * MOMENT)) == [("worker/0", "a")]


def test_a_burst_is_folded_line_by_line() -> None:
    folding = started(3)
    texts = ["Epoch 1/2", "6/6 - 0s - loss: 0.5000 - 9ms/step", "Epoch 2/2"]
    shown = feed(folding, *(line(task, text) for task in range(3) for text in texts))
    assert shown == [(ALL, text) for text in texts]


RUN = "20261127-013316-vra9"
STAMP = "0000 00:00:1795320342.882476    8101 "
ALIKE = [
    ("6/6 - 0s - loss: 0.5 - 398ms/epoch - 66ms/step", "6/6 - 1s - loss: 0.5 - 1s/epoch - 171ms/step", True),
    ("step 40: loss 0.3012, 41.2 steps/s", "step 40: loss 0.3012, 9.8 steps/s", True),
    ("\x1b[1m6/6\x1b[0m \x1b[1m0s\x1b[0m 7ms/step", "\x1b[1m6/6\x1b[0m \x1b[1m1s\x1b[0m 12ms/step", True),
    ("6/6 - 0s - loss: 0.5", "6/6 - 0s - loss: 0.6", False),
    ("2026-11-27 01:33:16,123 INFO step 3", "2026-11-27 01:33:17,004 INFO step 3", True),
    ("[01:33:16] step 3", "[01:33:17] step 3", True),
    ("INFO 2026-11-27T01:33:16.1Z: step 3", "INFO 2026-11-27T01:33:16.2Z: step 3", True),
    ("11/27/2026 01:33:16 - INFO - x", "11/27/2026 01:33:17 - INFO - x", True),
    ("I1127 01:33:16.123456 140234 train.py:12] step 3", "I1127 01:33:16.1 9 train.py:12] step 3", True),
    ("2026-11-27 01:33:16 step 3", "2026-11-27 01:33:16 step 4", False),
    ("row 2026-11-27 01:33:16", "row 2026-11-27 01:33:17", False),
    (f'  File "/h/1/runs/{RUN}/work/t.py", line 6', f'  File "/h/2/runs/{RUN}/work/t.py", line 6', True),
    (f"W{STAMP}a.cc:1] x", "W0000 00:00:1795320343.000001    8203 a.cc:1] x", True),
    ("gpu: Tesla T4, cuda: 12.1.2", "gpu: Tesla T4, cuda: 11.8.0", False),
]


@pytest.mark.parametrize(("one", "other", "alike"), ALIKE)
def test_lines_match_apart_from_durations_and_rates(one: str, other: str, alike: bool) -> None:
    folding = started(2)
    assert feed(folding, line(0, one), line(1, other)) == ([("worker/0,worker/1", one)] if alike else [])


ONEDNN = (  # at full length
    "oneDNN custom operations are on. You may see slightly different numerical results due to floating-point"
    " round-off errors from different computation orders. To turn them off, set the environment variable"
    " `TF_ENABLE_ONEDNN_OPTS=0`."
)
INFOS = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    f"I{STAMP}cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use",
    f"I{STAMP}port.cc:153] {ONEDNN}",
    f"I{STAMP}gpu_device.cc:20] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.0GiB",
    f"I{STAMP}service.cc:152] XLA service 0x7f failed over",
    "I1127 01:33:16.123456 140234 cross_device_ops.py:617] Reduce to /job:localhost failed once",
    "2024-01-02 09:35:23.860511: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.",
    "INFO:tensorflow:Collective all_reduce tensors: 2 all_reduces, num_devices = 1",
]
OTHERS = [
    "",
    "I am a line",
    "2024 is a year",
    "INFO:tensorflow:Error reported to Coordinator: out of range",
    "I1127 01:33:16.123456 140234 train.py:12] step 3: loss 0.5",
    "/job:worker/replica:0/task:2",
    f"W{STAMP}gpu_device.cc:2341] Cannot dlopen some GPU libraries.",
    "To enable the following instructions: are my own words",
]


@pytest.mark.parametrize("text", [*INFOS, *OTHERS])
def test_only_tensorflow_info_messages_are_hidden(text: str) -> None:
    folding = started(1)
    shown = [] if text in INFOS else [("worker/0", text)]
    assert feed(folding, line(0, text), line(0, "data ready")) == [*shown, ("worker/0", "data ready")]
    assert folding.flush() == []


def test_lines_below_an_info_message_are_hidden_with_it() -> None:
    stragglers, peer = (
        f"I{STAMP}coordination_service.cc:505] Example stragglers:",
        "/job:worker/replica:0/task:2",
    )
    unhealthy = f"E{STAMP}coordination_service.cc:9] The following tasks are unhealthy:"
    lines = (line(0, stragglers), line(1, unhealthy), line(0, peer), line(1, peer), line(0, "data ready"))
    shown = [("worker/1", unhealthy), ("worker/1", peer), ("worker/0", "data ready"), ("worker/0", peer)]
    folding = started(2)
    assert [*feed(folding, *lines, line(0, peer)), *words(folding.flush())] == shown


TEXTS = st.sampled_from(["a", "b", "Epoch 1/2", "6/6 - 9ms/step", "6/6 - 12ms/step", "Error: x"])


@given(st.lists(st.tuples(st.integers(0, 3), TEXTS, st.floats(0, 0.5), st.booleans()), max_size=80))
def test_each_line_is_shown_once_in_its_task_s_order(steps: list[tuple[int, str, float, bool]]) -> None:
    folding = started(4)
    now, shown = 0.0, []
    for task, text, pause, tick in steps:
        now += pause
        shown += folding.add(line(task, text, 100.0 + now), 100.0 + now, now)
        shown += folding.tick(now) if tick else []
    shown += folding.flush()
    assert folding.flush() == []
    for task in range(4):
        name = f"worker/{task}"
        mine = [one.text for one in shown if name in (one.tasks if isinstance(one, Folded) else (one.task,))]
        wrote = [text for number, text, *_ in steps if number == task]
        assert [text.replace("12ms", "9ms") for text in mine] == [
            text.replace("12ms", "9ms") for text in wrote
        ]
