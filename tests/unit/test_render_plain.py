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

from orchestrator import events as ev
from orchestrator.events import Event, Level, LogLine, Outcome, Phase, Stamped
from orchestrator.render import Look
from orchestrator.render.errors import coloured
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


def test_a_command_of_any_length_is_one_line_that_can_be_read() -> None:
    _, err = shown(ev.RunPlanned("r1", "", "", ("train.py", *["--x"] * 9999), (("worker/0", "a"),), (), ""))
    assert err.startswith("run r1: 1 task on 1 host: train.py --x --x ")
    assert err.endswith("\u2026\n")
    assert len(err) < 1100


def test_the_story_of_a_run_that_fails() -> None:
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
        ),
    )
    matches_golden("render/failed_run.txt", f"{out}--- stderr\n{err}")


def test_of_a_run_s_start_one_line_is_said_where_that_is_enough() -> None:
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


def test_what_the_encoding_cannot_say_is_escaped(tmp_path: Path) -> None:
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
        with contextlib.suppress(OSError):  # hung up
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


def test_a_tasks_line_is_broken_between_words() -> None:
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
    (row,) = paint.lines_of(line, 30)  # no room for words
    assert row.plain == paint.lines_of(line)[0].plain


def test_how_a_run_ended_has_a_color() -> None:
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
def test_the_last_line_of_a_run_offers_what_comes_next(name: str, host: str, last: str) -> None:
    planned = ev.RunPlanned("r1", name, "ann@laptop", ("t.py",), (("worker/0", host),), (), "/runs/r1")
    ended = ev.RunEnded("r1", ev.Outcome.SUCCEEDED, 0, 1.0, "", "", (), "/runs/r1")
    story: list[Event] = [planned, ev.TaskStarted("worker/0", host, "1", 1), ended]
    said = summary(replay([Stamped(1.0, event) for event in story]))[-1]
    assert said.removesuffix(" the tasks wrote") == f"more: {last}"
