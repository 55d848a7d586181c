from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import events as ev
from orchestrator.eventjson import decode
from orchestrator.events import Event, Level, Outcome, Phase, Stamped
from orchestrator.model import Fold
from orchestrator.render import DisplayGoneError, Jsonl, Look, choose
from orchestrator.render.plain import Plain
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


def exited(task: str, host: str, **how: object) -> ev.TaskExited:
    known: dict[str, object] = {
        "code": None,
        "signal": None,
        "lost": "",
        "seconds": 41.2,
        "ended": 0.0,
        "stopped": False,
    }
    return ev.TaskExited(task=task, host=host, attempt="1", **(known | how))  # type: ignore[arg-type]


def shown(*events: Event) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    renderer = Plain(out, err)
    for at, event in enumerate(events):
        renderer.handle(Stamped(float(at), event))
    renderer.close()
    return out.getvalue(), err.getvalue()


def test_the_story_of_a_run_that_fails() -> None:
    out, err = shown(
        PLAN,
        ev.PhaseStarted(Phase.CONNECT, 3),
        ev.HostConnected("gpu-01", 0.1),
        ev.PhaseEnded(Phase.CONNECT, ok=True, seconds=0.25),
        ev.PhaseStarted(Phase.PREFLIGHT, 3),
        ev.CheckReported(
            "gpu-01", "rsync", Level.WARN, "not found", "files go as a tar stream", "apt install rsync"
        ),
        ev.CheckReported(
            "gpu-2", "rsync", Level.WARN, "not found", "files go as a tar stream", "apt install rsync"
        ),
        ev.CheckReported("cpu", "python", Level.OK, "3.11.2"),
        ev.PhaseEnded(Phase.PREFLIGHT, ok=True, seconds=0.9),
        ev.PhaseStarted(Phase.STAGE, 3),
        ev.TreeSynced("gpu-01", "d1", 132, 1_200_000, 0.4, reused=False),
        ev.TreeSynced("gpu-2", "d1", 132, 0, 0.1, reused=True),
        ev.PhaseEnded(Phase.STAGE, ok=True, seconds=0.8),
        ev.PhaseStarted(Phase.VALIDATE, 3),
        ev.HostValidated("gpu-01", "digits", 2.31, 41.25, 6.0),
        ev.FetchStepped("worker/1", "mnist", "downloads", 4_200_000, 11_594_722),
        ev.FetchStepped("worker/1", "mnist", "waits for another process", 0, 0),
        ev.HostValidated("gpu-2", "set", 2.31, 41.25, 6.0),
        ev.HostValidated("cpu", "", None, None, 6.0),
        ev.ValidationStood(("gpu-01", "gpu-2"), 11_000.0),
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
    for event in (PLAN, ev.Noted("left out: data"), *phase, *TWO, ev.Noted("the chief is saved")):
        renderer.handle(Stamped(1.0, event))
    renderer.handle(Stamped(1.0, ev.PhaseEnded(Phase.STAGE, ok=False, seconds=0.8)))
    assert err.getvalue().splitlines() == [
        "run tidy-otter (mnist): 3 tasks on 3 hosts: train.py --note 'a b'",
        "note: the chief is saved",
        "stage: failed after 0.8 s",
    ]


def test_the_summary_folds_many_tasks_that_ended_alike() -> None:
    tasks = tuple((f"worker/{i}", f"gpu-{i:02}") for i in range(64))
    plan = ev.RunPlanned("r1", "", "ann@laptop", (), tasks, (), "/runs/r1")
    ends = [exited(task, host, code=0, seconds=40.0 + i % 3) for i, (task, host) in enumerate(tasks)]
    _, err = shown(plan, *ends, ev.RunEnded("r1", Outcome.SUCCEEDED, 0, 50.0, "", "", (), "/runs/r1"))
    assert err.splitlines()[-3:] == [
        "run r1 succeeded after 50 s",
        "  worker/[0-63]  gpu-[00-63]  finished  40 s to 42 s",
        "logs: /runs/r1/logs",
    ]


ENDS: list[tuple[dict[str, object], str]] = [
    ({"code": 0}, "finished"),
    ({"code": 3}, "exited with 3"),
    ({"signal": 11}, "was killed by SIGSEGV"),
    ({"lost": "the guard is gone"}, "is lost"),
    ({"stopped": True, "signal": 15}, "was stopped"),
    ({"stopped": True, "code": 0}, "was stopped"),
    ({"stopped": True, "code": 143}, "was stopped"),
    ({"stopped": True, "signal": 9}, "was stopped, by SIGKILL"),
    ({"stopped": True, "code": 42}, "was stopped, with exit status 42"),
]


@pytest.mark.parametrize(("how", "words"), ENDS)
def test_an_end_is_worded_by_how_it_came(how: dict[str, object], words: str) -> None:
    _, err = shown(exited("worker/0", "gpu-01", **how))
    assert err.startswith(f"worker/0 gpu-01: {words} after 41 s")


def test_json_is_the_events_and_nothing_else() -> None:
    out = io.StringIO()
    renderer = Jsonl(out)
    history = [Stamped(1.5, PLAN), Stamped(2.5, ev.LogLine("worker/0", "gpu-01", "\x1b[31mé\x1b[0m", 1.0))]
    for stamped in history:
        renderer.handle(stamped)
    renderer.close()
    assert "\x1b" not in out.getvalue()
    assert [decode(line.encode()) for line in out.getvalue().splitlines()] == history


def test_the_display_is_chosen_by_where_stdout_goes() -> None:
    out, err = io.StringIO(), io.StringIO()
    assert isinstance(choose(out, json=True, stderr=err), Jsonl)
    assert isinstance(choose(out, json=False, stderr=err), Plain)


def show_one(renderer: Plain) -> None:
    renderer.handle(Stamped(1.0, ev.LogLine("worker/0", "gpu-01", "x", 1.0)))
    renderer.tick()


@pytest.mark.parametrize("make", [Plain, lambda out, _: Jsonl(out)])
def test_a_pipe_without_a_reader_is_said_once_and_harms_nothing_later(make: type[Plain]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        renderer = make(out, io.StringIO())
        with pytest.raises(DisplayGoneError):
            show_one(renderer)
        out.write("a print of someone else")  # the flush at exit must not fail


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


def test_a_hang_is_told_with_what_was_found() -> None:
    _, err = shown(
        ev.HangSuspected(ev.HangKind.SILENT, ("worker/0", "worker/1"), 600.0),
        ev.StacksTaken(
            ("worker/1",), "worker/1 on gpu-2 hangs at t\x1b[2J.py:9 in nap", "/r/stacks/1.txt", ("cpu",), 0.4
        ),
        ev.HangPassed(70.0),
        ev.HangSuspected(ev.HangKind.LAGGING, ("worker/1",), 660.0),
    )
    assert err.splitlines() == [
        "no word from worker/[0-1] for 10 min 00 s; taking their stacks",
        "worker/1 on gpu-2 hangs at t.py:9 in nap",
        "  no stacks from cpu",
        "  all stacks: /r/stacks/1.txt",
        "the tasks no longer seem to hang, 70 s later",
        "worker/1: behind the others, and silent, for 11 min 00 s; taking all stacks",
    ]


NOISE = "I0000 00:00:1795320342.882476    8101 port.cc:153] oneDNN custom operations are on."
TWO: list[Event] = [ev.TaskStarted("worker/0", "gpu-01", "1", 1), ev.TaskStarted("worker/1", "gpu-2", "1", 2)]
LINES: list[Event] = [
    ev.LogLine(f"worker/{place}", host, text, 1.0)
    for text in (NOISE, "Epoch 1/3")
    for place, host in enumerate(("gpu-01", "gpu-2"))
]


def looked(look: Look, *events: Event) -> list[str]:
    out = io.StringIO()
    renderer = Plain(out, io.StringIO(), look)
    for event in events:
        renderer.handle(Stamped(event.sent if isinstance(event, ev.LogLine) else 0.0, event))
    renderer.close()
    return out.getvalue().splitlines()


def test_a_pipe_gets_every_line_of_every_task_unless_folding_is_asked_for() -> None:
    assert looked(Look(), *TWO, *LINES) == [
        f"worker/0 gpu-01 | {NOISE}",
        f"worker/1 gpu-2  | {NOISE}",
        "worker/0 gpu-01 | Epoch 1/3",
        "worker/1 gpu-2  | Epoch 1/3",
    ]
    assert looked(Look(fold=Fold.SIMILAR), *TWO, *LINES) == [
        "worker/[0-1]    | Epoch 1/3",
    ]
