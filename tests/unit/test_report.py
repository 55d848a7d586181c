"""The page of a run, from handmade folders: all their contents become bounded text."""

import base64
import hashlib
import http.client
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from orchestrator import events as ev
from orchestrator.cli.main import main
from orchestrator.errors import ExitStatus
from orchestrator.model import RunPlan
from orchestrator.names import RunId
from orchestrator.report import several
from orchestrator.report.curves import Point, charts, joined, printed
from orchestrator.report.live import PageServer, script
from orchestrator.report.page import page, parameters
from orchestrator.report.story import Story, read
from orchestrator.run import hang
from orchestrator.run.view import View
from orchestrator.store import RunFolder, runs_root
from orchestrator.store.bus import EventLog
from orchestrator.store.mirror import Mirror
from orchestrator.store.points import PointFile
from tests.unit import plans

ID, OTHER, THIRD = (RunId(f"20261121-01020{n}-abc{letter}") for n, letter in enumerate("def"))
HOSTILE = '<script>alert(1)</script></pre>{{ 7 * 7 }}{% raw %}" onload=x \x1b[2J\u202e\x00 \ud800'
STARTED = (ev.TaskStarted("worker/0", "gpu-1", "1", 42), ev.TaskStarted("worker/1", "gpu-2", "1", 43))
VOID = {"meta", "br", "path", "link"}


class Outline(HTMLParser):
    """Checks a page's elements: all closed, no foreign script, no attribute with a link or an action."""

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
    return replace(made, **{"run": str(ID), **changes})


def folder(*events: ev.Event, run: RunId = ID, **changes: object) -> RunFolder:
    made = RunFolder(runs_root(), run)
    made.create(plan(**{"run": str(run), **changes}))
    log = EventLog(made)
    for number, event in enumerate(events):
        log(ev.Stamped(1e9 + number, event))
    return made


def trained(run: RunFolder, metrics: dict[str, list[float]], task: str = "worker/0", loss: str = "") -> None:
    """Let a task report these values, one per step."""
    points = PointFile(run.points, 2)
    for step in range(max(map(len, metrics.values()))):
        values = {name: each[step] for name, each in metrics.items() if step < len(each)}
        event = ev.TaskProgressed(task, step, values.pop("loss", None), None, loss, values)
        points.take(event, "1", 1e9 + step)
    points.write()


def ended(outcome: ev.Outcome, cause: str = "", lines: tuple[str, ...] = ()) -> ev.RunEnded:
    return ev.RunEnded(
        str(ID), outcome, 1, 61.0, cause, "worker/1" if cause else "", lines, "/run", hint="think"
    )


def test_text_from_a_task_or_host_stays_text() -> None:
    big = HOSTILE.encode("utf-8", "surrogatepass") + b"\xff\xfe" + b"<b>" * (4 << 20)
    facts = ev.HostDescribed("gpu-1", HOSTILE, 8, 32 << 30, HOSTILE, HOSTILE, (HOSTILE,), {HOSTILE: HOSTILE})
    run = folder(
        facts,
        ev.CheckReported("gpu-1", HOSTILE, ev.Level.FAIL, HOSTILE, HOSTILE, HOSTILE),
        ev.PairReported("gpu-1", "gpu-2", HOSTILE, False, None, None, HOSTILE),
        *STARTED,
        ev.HostLost("gpu-1", HOSTILE),
        ev.Noted(HOSTILE),
        ev.TaskReported("worker/0", ev.Last.PARAMS, {HOSTILE: HOSTILE, "lr": 0.1}),
        ev.TaskReported("worker/1", ev.Last.RESULT, {HOSTILE: [HOSTILE, {HOSTILE: 1}]}),
        ev.StopRequested(ev.StopBy.USER, HOSTILE, 1.0),
        ev.TaskExited("worker/1", "gpu-2", "1", None, None, HOSTILE, 1e300, -1e300, stopped=False),
        ended(ev.Outcome.FAILED, HOSTILE, (HOSTILE,)),
        name=HOSTILE[:-4],
        notes=(HOSTILE[:-4],),
    )
    trained(run, {HOSTILE[:-2]: [1.0, 2.0]})
    used = PointFile(run.usage, 2)
    for at in (1e9, 1e9 + 5):
        event = ev.TaskProgressed(HOSTILE[:-2], 0, None, None, metrics={"memory": 1.0, HOSTILE[:-2]: 2.0})
        used.take(event, "1", at)
    used.write()
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
    other = folder(run=OTHER, name=HOSTILE[:-4], command=("train.py", HOSTILE[:-4], "--lr", HOSTILE[:-4]))
    text = several.page_of([run, other], 2e9)
    assert outline(text).text.count("<script>alert(1)</script>") > 10
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]", text)


def test_only_the_names_of_secrets_appear() -> None:
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
def test_every_run_has_a_page_however_far_it_got(look: str) -> None:
    events, headline = LOOKS[look]
    (title,) = re.findall("<title>(.*)</title>", page(folder(*events), 2e9))
    assert headline in title


def test_the_verdict_comes_first_and_names_the_differing_task() -> None:
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


def test_a_page_warns_about_separate_training_during_and_after_the_run() -> None:
    apart = ev.PeersReported(("worker/0", "worker/1"), connected=False)
    met = ev.PeersReported((), connected=False)
    succeeded = replace(ended(ev.Outcome.SUCCEEDED), warnings=(hang.separate_warning(apart),))
    for events, warns in (((*STARTED, apart), True), ((met,), False), ((apart, succeeded), True)):
        text = page(folder(*events), 2e9)  # each extends the previous ones
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


def test_the_page_is_written_to_the_requested_place(capsys: pytest.CaptureFixture[str]) -> None:
    run = folder(*STARTED)
    assert main(["report"]) == main(["report", "abcd", "-o", "here.html"]) == ExitStatus.OK
    assert capsys.readouterr().out.split() == [str(run.page), "here.html"]
    assert run.page.stat().st_mode & 0o777 == 0o600
    assert main(["report", "-o", "no/such/place.html"]) == ExitStatus.USAGE


PARAMETERS: dict[str, tuple[tuple[str, ...], dict[str, object], dict[str, str]]] = {
    "arguments": (
        ("python", "-u", "train.py", "--lr=0.1", "--layers", "64", "32", "-v"),
        {},
        {"lr": "0.1", "layers": "64 32", "v": "yes"},
    ),
    "of a module": (
        ("python", "-m", "pkg.train", "--decay", "-1e-3", "--fast"),
        {},
        {"decay": "-1e-3", "fast": "yes"},
    ),
    "as Hydra has them": (("train.py", "optimizer.lr=0.1", "data"), {}, {"optimizer.lr": "0.1"}),
    "of the bundled program": (("--dataset", "digits"), {}, {"dataset": "digits"}),
    "for a shell": (("bash", "-c", "train --lr 1"), {}, {}),
    "reported": (
        ("train.py", "--batch-size", "8", "--seed", "1"),
        {"batch_size": 16, "lr": 0.5, "layers": [1, 2], "api_key": "x", "max_tokens": 9},
        {
            "seed": "1",
            "batch_size": "16",
            "lr": "0.5",
            "layers": "[1,2]",
            "api_key": "***",
            "max_tokens": "9",
        },
    ),
}


@pytest.mark.parametrize("what", PARAMETERS)
def test_parameters_are_reported_values_or_else_arguments(what: str) -> None:
    command, reported, shown = PARAMETERS[what]
    run = folder(*STARTED, ev.TaskReported("worker/0", ev.Last.PARAMS, reported), command=command)
    found = {name: values[0][0] for name, values in parameters(read(run))}
    variables = {"API_KEY": "***", "MONKEY": "banana", "SHOWN": "yes"}
    assert found == variables | shown
    assert all(value in outline(page(run, 2e9)).text for value in shown.values())


def test_several_runs_share_charts_and_a_table_of_differences(capsys: pytest.CaptureFixture[str]) -> None:
    """With different metrics or length, failed, still running, without any values, or named twice."""
    long = folder(*STARTED, ended(ev.Outcome.FAILED, "no"), name="night", command=("train.py", "--lr", "1"))
    trained(long, {"loss": [4.0, 3.0, 2.0, 1.0], "f1": [0.1, 0.2]})
    trained(long, {"loss": [9.0, 9.0], "auc": [0.5, 0.75]}, "worker/1")
    short = folder(*STARTED, run=OTHER, command=("train.py", "--lr", "2", "--seed", "7"))
    trained(short, {"loss": [3.0, 2.5], "val_loss": [3.5, 3.25]})
    folder(run=THIRD, name="night")
    assert main(["report", ID, OTHER, THIRD, "abcd", "-o", "page.html"]) == ExitStatus.OK
    assert capsys.readouterr().out == "page.html\n"
    text = Path("page.html").read_text()
    found = outline(text).text
    labels = [f"night {ID}", str(OTHER), f"night {THIRD}"]
    assert all(word in found for word in ("3 runs", *labels, "failed", "unkept", "val_loss", "auc"))
    (loss, *_) = re.findall(r'aria-label="loss over steps">(.*?)</svg>', text, re.DOTALL)
    lines = re.findall(r'd="(.*?)"><title>(.*?)</title>', loss)
    assert [(line.count("L"), name) for line, name in lines] == list(zip((3, 1, 0), labels, strict=True))
    for words in ([ID, OTHER], ["nig*"]):
        assert main(["report", *words]) == ExitStatus.OK
        assert capsys.readouterr().out == f"{long.pages}\n"
    assert "2 runs" in long.pages.read_text()
    assert not long.page.exists()
    assert main(["report", "day*"]) == ExitStatus.USAGE


def test_a_nan_loss_is_reported_and_breaks_the_curve() -> None:
    run = folder(*STARTED)
    trained(run, {"loss": [2.0, 1.0]})
    trained(run, {"f1": [0.5, 0.5, 0.5]}, loss="nan")
    text = outline(page(run, 2e9)).text
    assert "worker/0: nan at step 0" in text
    assert re.search(r"2nan\s*0.5", text), repr(text)


def test_a_curve_breaks_where_a_value_is_not_finite() -> None:
    losses = (3.0, 2.0, math.nan, 2.0, 1.0)
    points = [Point(float(step), step, {"loss": loss}) for step, loss in enumerate(losses)]
    (over_steps, _) = charts({"worker/0": points}, 0.0)
    assert re.sub(r"[-\d. ]+", "", over_steps["paths"]["worker/0"]) == "MLML"
    assert over_steps["note"] == "worker/0: nan at step 2"


def test_an_unknown_run_gets_the_nearest_match(capsys: pytest.CaptureFixture[str]) -> None:
    folder(name="nightly")
    assert main(["report", "nigthly"]) == ExitStatus.USAGE
    assert "nightly" in capsys.readouterr().err


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
def test_numbers_are_read_at_any_chunk_boundary(what: str, piece: int, tmp_path: Path) -> None:
    data, points = PRINTED[what]
    run = folder()
    mirror = Mirror(run, "1", "worker-0")
    for at in range(0, len(data), piece):
        mirror.add_log(at, data[at : at + piece], [(at, (10 + at) * 10**9)])
    paths = run.log("1", "worker-0"), run.times("1", "worker-0")
    found = printed(*paths, 1 << 20)
    assert [(point.step, point.values) for point in found] == points
    assert printed(paths[0], tmp_path / "none", 1) == []


def test_accuracy_is_placed_at_the_last_reported_step() -> None:
    reported = [Point(10.0, 100, {"loss": 0.5}), Point(20.0, 200, {"loss": 0.4})]
    points = [Point(at, 3, {"loss": 9.9, "accuracy": value}) for at, value in ((15.0, 0.8), (30.0, 0.9))]
    found = [(point.step, point.values) for point in joined(reported, points)]
    assert found == [
        (100, {"loss": 0.5}),
        (100, {"accuracy": 0.8}),
        (200, {"loss": 0.4}),
        (200, {"accuracy": 0.9}),
    ]


ODD = [float("nan"), float("inf"), -1e300, 1e308, 5e-324, 0.0, -1.0, 1e14]


def test_odd_numbers_are_skipped_or_drawn() -> None:
    points = [
        Point(1e9 + number, number, dict.fromkeys(("loss", "f1"), value)) for number, value in enumerate(ODD)
    ]
    for chart in charts({"worker/0": points, "worker/1": points[::-1]}, 1e9):
        numbers = re.findall(r"[ML]([-\d.]+) ([-\d.]+)", "".join(chart["paths"].values()))
        assert numbers
        assert all(-0.01 <= float(number) <= 100.01 for pair in numbers for number in pair)
    assert charts({}, 0.0) == charts({"worker/0": points[:1], "worker/1": []}, 0.0) == []


def test_the_curve_of_a_long_run_is_short() -> None:
    points = [Point(float(step), step, {"loss": 1.0 / (step + 1)}) for step in range(50_000)]
    over_steps, over_time = charts({"worker/0": points}, 0.0)
    assert over_steps["paths"]["worker/0"].count("L") < 2420
    assert [text for _, text in over_time["xs"]] == ["0 h", "5 h", "10 h"]
    assert [text for _, text in over_steps["ys"]][-1] == "0.01"


def test_no_curve_crosses_a_restart_and_time_starts_with_the_run() -> None:
    points = [
        Point(at, step, {"loss": 1.0 / (step + 1)})
        for at, step in ((10, 0), (12, 2), (20, 1), (22, 3), (30, 2))
    ]
    over_steps, over_time = charts({"worker/0": points}, 0.0, {"worker/0": [19.0, 29.0]})
    shapes = [re.sub(r"[-\d. ]+", "", chart["paths"]["worker/0"]) for chart in (over_steps, over_time)]
    assert shapes == ["MLMLML"] * 2  # a single point is drawn as a dot
    assert over_time["xs"][0] == (0.0, "0 s")
    assert over_time["paths"]["worker/0"].startswith("M33.33 ")


def test_the_history_shows_when_a_task_restarted() -> None:
    story = Story(plan=plans.make(plans.host("a")), view=View(), kept=False)
    for at, attempt in ((1.0, "1"), (1.5, "1"), (9.0, "2")):
        story.add(at, ev.TaskStarted("worker/0", "a", attempt, 7))
    assert story.restarts == {"worker/0": [9.0]}


def test_the_page_of_hundreds_of_restarts_stays_small() -> None:
    failed = [ev.AttemptFailed(str(number), "", "", (), "", 1.0, number, 300) for number in range(1, 301)]
    again = [ev.TaskStarted("worker/0", "gpu-1", failure.attempt, 7) for failure in failed]
    text = page(folder(*again, *failed), 2e9)
    assert len(text) < 1 << 20
    assert text.count("attempt 300 failed") == 1


# --- `report --follow`: accepted requests, responses, and the end of the server ---


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer(partial(page, folder(*STARTED), live=script()), 0) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(
    url: str, method: str = "GET", path: str | None = None, **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    where = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", where.port, timeout=60)
    connection.putrequest(method, where.path if path is None else path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.headers


def test_a_browser_gets_the_current_page_and_only_its_own_script_runs(server: PageServer) -> None:
    status, text, headers = ask(server.url)
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    (own,) = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    (policy,) = re.findall('Content-Security-Policy" content="(.*?)"', text)
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert (
        policy
        == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; connect-src 'self'"
    )
    outline(text.replace(own, "").replace("<script></script>", ""))
    assert ask(server.url, If_None_Match=headers["ETag"])[:2] == (304, "")
    assert ask(server.url, "HEAD")[:2] == (200, "")
    folder(ended(ev.Outcome.SUCCEEDED))  # appends to the events
    server._due = 0.0
    assert "succeeded after 61 s" in ask(server.url, If_None_Match=headers["ETag"])[1]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((one, 200) for one in ("127.0.0.1", "localhost:8000", "LOCALHOST", "[::1]:9")),
        *((one, 403) for one in ("", "evil.example", "127.0.0.1.evil.example", "localhost:x", "a@127.0.0.1")),
    ],
)
def test_only_requests_for_local_host_names_are_answered(server: PageServer, host: str, status: int) -> None:
    """Under DNS rebinding, a foreign page still sends its own name in Host."""
    assert ask(server.url, Host=host)[0] == status


@pytest.mark.parametrize("path", ["/", "/report.html", "/../../etc/passwd"])
def test_without_the_secret_path_there_is_no_page(server: PageServer, path: str) -> None:
    status, text, _ = ask(server.url, path=path)
    assert (status, "succeeded" in text) == (404, False)
    assert ask(server.url, "POST")[0] == 501


def test_a_run_removed_during_the_report_is_reported(server: PageServer) -> None:
    folder().plan.unlink()
    assert ask(server.url)[0] == 503


def test_the_report_listens_only_on_loopback_and_ctrl_c_ends_it_cleanly() -> None:
    run, argv = folder(*STARTED), [sys.executable, "-m", "orchestrator", "report", "--follow", ID]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=run.path, text=True, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert ask(url)[0] == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in err


def test_conflicting_options_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder(*STARTED)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words in (f"--follow -o {tmp_path}/a.html", f"--port {port}", f"--follow --port {port}"):
            assert main(["report", *words.split()]) == ExitStatus.USAGE
    assert f"cannot listen on port {port}" in capsys.readouterr().err
