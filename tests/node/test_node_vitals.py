"""What a task uses, and what TERM does to it, told of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.node.look import vitals
from tests.node.harness import until
from tests.node.lab import Lab

TERMS = [
    ("", vitals.DEFAULT),
    ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", vitals.IGNORED),
    ("signal.signal(signal.SIGTERM, lambda *_: None)", vitals.CAUGHT),
]


@pytest.mark.parametrize(("code", "word"), TERMS)
def test_what_term_does(code: str, word: str) -> None:
    program = f"import signal, time\n{code}\nprint(1, flush=True)\ntime.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert vitals.term(process.pid) == word
        process.kill()
    assert vitals.term(process.pid) == vitals.UNKNOWN


def test_all_processes_of_a_task_count(lab: Lab) -> None:
    busy = "while True: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    agent = lab.agent()
    lab.start(agent, sys.executable, "-c", code)

    def one() -> dict[str, object]:
        (task,) = agent.request("vitals", run=lab.run, attempt="1")["tasks"]
        return dict(task)

    until(lambda: one()["processes"] == 2)
    first = one()
    until(lambda: float(str(one()["cpu"])) > float(str(first["cpu"])))
    assert int(str(first["memory"])) > 4_000_000
    assert "term" not in first
    assert "gpu_busy" not in first
    assert agent.request("vitals", run=lab.run, attempt="2")["tasks"] == []


# There is no GPU here: a program stands in for the driver's own.
NVIDIA = """#!/bin/sh
case $1 in
*utilization*) echo "GPU-1, 92"; echo "GPU-2, [N/A]";;
*) echo "GPU-1, $PID, 10240"; echo "GPU-2, $PID, 100"; echo "GPU-1, 999999999, 5"; echo broken;;
esac
"""


def test_memory_and_load_of_gpus(lab: Lab, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    pid = tmp_path / "pid"
    program.write_text(NVIDIA.replace("$PID", f"$(cat {pid})"))
    program.chmod(0o755)
    agent = lab.agent(env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    pid.write_text(str(lab.start(agent, "sleep", "600")["pid"]))
    (task,) = agent.request("vitals", run=lab.run, attempt="1", gpus=True)["tasks"]
    assert (task["gpu_memory"], task["gpu_busy"]) == ((10240 + 100) << 20, 92)


def test_the_newest_checkpoint(tmp_path: Path) -> None:
    assert vitals.newest(f"{tmp_path}/", 0) is None
    names = ["a/b/ckpt-1.index", "model.keras", "a/notes.txt", "a/b/ckpt-1.data-00000-of-00001"]
    now = time.time()
    for age, name in enumerate(names):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (now - age, now - age))
    (tmp_path / "link.keras").symlink_to("/etc/passwd")
    found = vitals.newest(f"{tmp_path}/", 0)
    assert found is not None
    assert found["path"] == "a/b/ckpt-1.index"
    assert vitals.newest(f"{tmp_path}/", time.time_ns() + 10**9) is None
    assert vitals.newest(f"{tmp_path}/none/", 0) is None
