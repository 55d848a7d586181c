"""`orchestrate tensorboard`: the tasks of all hosts in one local TensorBoard, while they write."""

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ExitStatus
from tests.processes import cmdline, pids
from tests.ssh.runs.desk import Desk, Viewer, until
from tests.training import training_python

STEPS = 20

# TensorBoard's own writer, without TensorFlow.
WRITER = """
import sys, types
import tensorboard.compat
sys.modules["tensorboard.compat.notf"] = tensorboard.compat.notf = types.ModuleType("notf")
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(sys.argv[1])
for step in range(int(sys.argv[2])):
    summary = Summary(value=[Summary.Value(tag="loss", simple_value=1 / (1 + step))])
    writer.add_event(Event(wall_time=1e9 + step, step=step, summary=summary))
writer.close()
"""

TASK = """
import json, os, pathlib, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
data = pathlib.Path("events").read_bytes()
folder = pathlib.Path("logs", "train")
folder.mkdir(parents=True)
with open(folder / f"events.out.tfevents.1.{index}", "wb", buffering=0) as file:
    file.write(data[:len(data) // 2])
    print("half", flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    file.write(data[len(data) // 2:])
print("whole", flush=True)
"""


@pytest.fixture
def writing(desk: Desk, tmp_path: Path) -> Path:
    """A run whose tasks have written half of their events; creating the returned file triggers the rest."""
    made = tmp_path / "made"
    subprocess.run([training_python(), "-c", WRITER, str(made), str(STEPS)], check=True, timeout=120)
    (events,) = made.iterdir()
    (desk.project / "events").write_bytes(events.read_bytes())
    desk.script("task.py", TASK)
    options = ("--detach", "--skip-preflight", "--no-validate")
    desk.launch(*options, "--", "task.py", str(tmp_path / "go")).ended()
    return tmp_path / "go"


def board(desk: Desk, programs: Path) -> tuple[Viewer, str]:
    """Start the folder's TensorBoard for the newest run; return it and its address."""
    path = f"{programs}:{os.environ['PATH']}"
    viewer = desk.start(
        "tensorboard", "--json", "--hosts", str(desk.hosts), PATH=path, TMPDIR=str(desk.folder)
    )
    until("TensorBoard answers", lambda: "\n" in viewer.stdout or viewer.process.poll() is not None, 180)
    assert viewer.process.poll() is None, viewer.stderr
    return viewer, json.loads(viewer.stdout)["url"]


def ask(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}data/{path}", timeout=60) as answer:
        return json.load(answer)


def steps(url: str, host: str) -> int:
    try:
        return len(ask(url, f"plugin/scalars/scalars?run={host}/logs/train&tag=loss"))
    except urllib.error.HTTPError:  # it has not loaded that run yet
        return 0


def boards(desk: Desk) -> list[int]:
    """Return the processes with our mirror's name on their command line."""
    mark = f"{desk.folder}/orchestrate-tensorboard-".encode()
    return [pid for pid in pids() if mark in cmdline(pid)]


def test_tensorboard_shows_all_tasks_live_and_ends_with_the_command(desk: Desk, writing: Path) -> None:
    viewer, url = board(desk, Path(training_python()).parent)
    hosts = [host.name for host in desk.cluster.hosts]
    until("all hosts are there", lambda: sorted(ask(url, "runs")) == [f"{host}/logs/train" for host in hosts])
    until("some steps are there", lambda: all(steps(url, host) for host in hosts))
    assert max(steps(url, host) for host in hosts) < STEPS
    writing.touch()
    until("all steps are there", lambda: [steps(url, host) for host in hosts] == [STEPS, STEPS])
    assert boards(desk)
    viewer.signal(signal.SIGINT)
    assert viewer.wait() == ExitStatus.OK
    assert "nothing is left on the hosts" in viewer.stderr
    assert not boards(desk)
    assert not list(desk.folder.glob("orchestrate-tensorboard-*"))
    for host in desk.cluster.hosts:
        assert not list(Path(host.workdir).rglob("*orchestrate-tensorboard*"))
    desk.program("tensorboard", "#!/bin/sh\necho http://127.0.0.1:1/ answers\nwhile :; do sleep 1; done\n")
    killed, _ = board(desk, desk.folder)
    assert boards(desk)
    killed.signal(signal.SIGKILL)
    killed.wait()
    until("TensorBoard is gone", lambda: not boards(desk))
