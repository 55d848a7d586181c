"""The page of a run, of folders made by hand: whatever they hold becomes text, bounded."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator import events as ev
from orchestrator.cli.main import main
from orchestrator.errors import ExitStatus
from orchestrator.model import RunPlan
from orchestrator.names import RunId
from orchestrator.report.curves import Point, charts, joined, printed
from orchestrator.report.page import page
from orchestrator.report.story import Story
from orchestrator.run import peers
from orchestrator.run.view import View
from orchestrator.store import RunFolder, runs_root
from orchestrator.store.bus import EventLog
from orchestrator.store.mirror import Mirror
from tests.unit import plans

ID = RunId("20261121-010203-abcd")
HOSTILE = '<script>alert(1)</script></pre>{{ 7 * 7 }}{% raw %}" onload=x \x1b[2J\u202e\x00 \ud800'
STARTED = (ev.TaskStarted("worker/0", "gpu-1", "1", 42), ev.TaskStarted("worker/1", "gpu-2", "1", 43))
VOID = {"meta", "br", "path", "link"}


class Outline(HTMLParser):
    """The elements of a page: each is closed, none is a script, no attribute leads elsewhere or acts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count = 0
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count += 1
        assert tag not in {"script", "link", "img", "iframe", "object", "base", "form", "a"}
        assert not any(name.startswith("on") or name in {"src", "href"} for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += "" if "style" in self.open else data


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    found.close()
    assert found.open == []
    return found


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def plan(**changes: object) -> RunPlan:
    hosts = (plans.host("gpu-1"), plans.host("gpu-2"))
    env = {"API_KEY": "hunter2", "MONKEY": "banana", "SHOWN": "yes"}
    made = plans.make(*hosts, command=("train.py",), env=env)
    return replace(made, run=str(ID), **changes)


def folder(*events: ev.Event, **changes: object) -> RunFolder:
    made = RunFolder(runs_root(), ID)
    made.create(plan(**changes))
    log = EventLog(made)
    for number, event in enumerate(events):
        log(ev.Stamped(1e9 + number, event))
    return made


def ended(outcome: ev.Outcome, cause: str = "", lines: tuple[str, ...] = ()) -> ev.RunEnded:
    return ev.RunEnded(
        str(ID), outcome, 1, 61.0, cause, "worker/1" if cause else "", lines, "/run", hint="think"
    )


def test_nothing_that_a_task_or_host_says_becomes_more_than_text() -> None:
    big = HOSTILE.encode("utf-8", "surrogatepass") + b"\xff\xfe" + b"<b>" * (4 << 20)
    facts = ev.HostDescribed("gpu-1", HOSTILE, 8, 32 << 30, HOSTILE, HOSTILE, (HOSTILE,), {HOSTILE: HOSTILE})
    run = folder(
        facts,
        ev.CheckReported("gpu-1", HOSTILE, ev.Level.FAIL, HOSTILE, HOSTILE, HOSTILE),
        ev.PairReported("gpu-1", "gpu-2", HOSTILE, False, None, None, HOSTILE),
        *STARTED,
        ev.HostLost("gpu-1", HOSTILE),
        ev.Noted(HOSTILE),
        ev.StopRequested(ev.StopBy.USER, HOSTILE, 1.0),
        ev.TaskExited("worker/1", "gpu-2", "1", None, None, HOSTILE, 1e300, -1e300, stopped=False),
        ended(ev.Outcome.FAILED, HOSTILE, (HOSTILE,)),
        name=HOSTILE[:-4],
        notes=(HOSTILE[:-4],),
    )
    Mirror(run, "1", "worker-1").add_log(0, big, [(0, 1)])
    run.stacks.mkdir()
    (run.stacks / "1.txt").write_bytes(big)
    run.code.write_text(json.dumps({"commit": "<b>", "diff": "<b>x" * 100_000 + "\n+<i>"}))
    text = page(run, 2e9)
    found = outline(text)
    assert found.text.count("<script>alert(1)</script>") > 10
    assert "7 * 7" in found.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]", text)
    assert len(text) < 1 << 20


def test_secrets_are_names() -> None:
    text = page(folder(secrets=("WANDB",)), 2e9)
    assert "hunter2" not in text
    assert all(word in text for word in ("API_KEY", "WANDB", "***", "banana", "yes"))


LOOKS: dict[str, tuple[tuple[ev.Event, ...], str]] = {
    "never began": ((), "unkept"),
    "not started": ((ended(ev.Outcome.CLUSTER, "preflight: no"),), "given up before its tasks were started"),
    "unkept": (STARTED, "unkept"),
    "well": ((*STARTED, ended(ev.Outcome.SUCCEEDED)), "succeeded after 61 s"),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_run_has_a_page_however_far_it_came(look: str) -> None:
    events, headline = LOOKS[look]
    (title,) = re.findall("<title>(.*)</title>", page(folder(*events), 2e9))
    assert headline in title


def test_the_verdict_comes_first_and_who_differs_is_named() -> None:
    versions = [
        ev.HostDescribed(name, "", 0, 0, "", "", (), {"numpy": text})
        for name, text in (("gpu-1", "1.26"), ("gpu-2", "2.1"))
    ]
    well = ev.PairReported("gpu-1", "gpu-2", "gpu-2:2222", True, 0.44, None)
    end = ended(ev.Outcome.FAILED, "worker/1 exited with 3", ("last words",))
    run = folder(*versions, well, *STARTED, end)
    text = outline(page(run, 2e9)).text
    order = [text.index(word) for word in ("worker/1 exited with 3", "last words", "Timeline", "1.26", "0.4")]
    assert order == sorted(order)
    assert re.search(r"1\.26\s*gpu-1\s*2\.1\s*gpu-2", text)


def test_a_page_warns_of_tasks_that_train_apart_while_they_do_and_at_the_end() -> None:
    apart = ev.PeersReported(("worker/0", "worker/1"), connected=False)
    met = ev.PeersReported((), connected=False)
    succeeded = replace(ended(ev.Outcome.SUCCEEDED), warnings=(peers.warning(apart),))
    for events, warns in (((*STARTED, apart), True), ((met,), False), ((apart, succeeded), True)):
        text = page(folder(*events), 2e9)  # each adds to the ones before
        assert ('<pre class="said warn">' in text) == warns
        assert ("warning: worker/[0-1] run separately" in outline(text).text) == warns


def test_a_damaged_folder_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    run = folder(*STARTED)
    run.events.unlink()
    os.mkfifo(run.events)
    assert main(["report", ID]) == ExitStatus.USAGE
    run.plan.unlink()
    assert main(["report", ID]) == ExitStatus.USAGE
    assert capsys.readouterr().err.count("error:") == 2


def test_where_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    run = folder(*STARTED)
    assert main(["report"]) == main(["report", "abcd", "-o", "here.html"]) == ExitStatus.OK
    assert capsys.readouterr().out.split() == [str(run.page), "here.html"]
    assert run.page.stat().st_mode & 0o777 == 0o600
    assert main(["report", "-o", "no/such/place.html"]) == ExitStatus.USAGE
    assert main(["launch", "--detach", "--report", "--", "true"]) == ExitStatus.USAGE


# --- curves ---

KERAS = b"""Epoch 1/2
5/5 - 0s - loss: 0.9 - accuracy: 0.5 - 100ms/epoch - 20ms/step
Epoch 2/2
5/5 - 0s - loss: 0.5 - accuracy: 0.75 - 50ms/epoch - 10ms/step
"""
LOOP = b"Epoch 1, Loss: 0.5, Test Loss: 9\nstep=2 acc = 0.5\n"
PRINTED: dict[str, tuple[bytes, list[tuple[float | None, dict[str, float]]]]] = {
    "a loop": (LOOP, [(1, {"loss": 0.5}), (2, {"accuracy": 0.5})]),
    "others": (b"val_loss: 3\nlossy: 4\nloss: nan\nloss: ....\nloss\n", []),
    "cut": (b"loss: 0.5\nloss: 0", [(None, {"loss": 0.5})]),
}


@pytest.mark.parametrize("what", PRINTED)
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_numbers_are_read_however_the_output_is_cut(what: str, piece: int, tmp_path: Path) -> None:
    data, points = PRINTED[what]
    run = folder()
    mirror = Mirror(run, "1", "worker-0")
    for at in range(0, len(data), piece):
        mirror.add_log(at, data[at : at + piece], [(at, (10 + at) * 10**9)])
    paths = run.log("1", "worker-0"), run.times("1", "worker-0")
    found = printed(*paths, 1 << 20)
    assert [(point.step, point.values) for point in found] == points
    assert printed(paths[0], tmp_path / "none", 1) == []


def test_accuracy_is_placed_at_the_step_that_a_task_reported_last() -> None:
    reported = [Point(10.0, 100, {"loss": 0.5}), Point(20.0, 200, {"loss": 0.4})]
    said = [Point(at, 3, {"loss": 9.9, "accuracy": value}) for at, value in ((15.0, 0.8), (30.0, 0.9))]
    found = [(point.step, point.values) for point in joined(reported, said)]
    assert found == [
        (100, {"loss": 0.5}),
        (100, {"accuracy": 0.8}),
        (200, {"loss": 0.4}),
        (200, {"accuracy": 0.9}),
    ]


ODD = [float("nan"), float("inf"), -1e300, 1e308, 5e-324, 0.0, -1.0, 1e14]


def test_odd_numbers_are_left_out_or_drawn() -> None:
    points = [
        Point(1e9 + number, number, dict.fromkeys(("loss", "f1"), value)) for number, value in enumerate(ODD)
    ]
    for chart in charts({"worker/0": points, "worker/1": points[::-1]}, 1e9):
        numbers = re.findall(r"[ML]([-\d.]+) ([-\d.]+)", "".join(chart["paths"].values()))
        assert numbers
        assert all(-0.01 <= float(number) <= 100.01 for pair in numbers for number in pair)
    assert charts({}, 0.0) == charts({"worker/0": points[:1], "worker/1": []}, 0.0) == []


def test_a_long_run_is_a_short_line() -> None:
    points = [Point(float(step), step, {"loss": 1.0 / (step + 1)}) for step in range(50_000)]
    over_steps, over_time = charts({"worker/0": points}, 0.0)
    assert over_steps["paths"]["worker/0"].count("L") < 2420
    assert [text for _, text in over_time["xs"]] == ["0 h", "5 h", "10 h"]
    assert [text for _, text in over_steps["ys"]][-1] == "0.01"


def test_no_line_leads_across_a_restart_and_time_begins_with_the_run() -> None:
    points = [
        Point(at, step, {"loss": 1.0 / (step + 1)})
        for at, step in ((10, 0), (12, 2), (20, 1), (22, 3), (30, 2))
    ]
    over_steps, over_time = charts({"worker/0": points}, 0.0, {"worker/0": [19.0, 29.0]})
    shapes = [re.sub(r"[-\d. ]+", "", chart["paths"]["worker/0"]) for chart in (over_steps, over_time)]
    assert shapes == ["MLMLML"] * 2  # a point alone is a dot
    assert over_time["xs"][0] == (0.0, "0 s")
    assert over_time["paths"]["worker/0"].startswith("M33.33 ")


def test_a_story_knows_when_a_task_was_started_again() -> None:
    story = Story(plan=plans.make(plans.host("a")), view=View(), kept=False)
    for at, attempt in ((1.0, "1"), (1.5, "1"), (9.0, "2")):
        story.tell(at, ev.TaskStarted("worker/0", "a", attempt, 7))
    assert story.restarts == {"worker/0": [9.0]}
