"""What a task uses, told of real processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.node.harness import until
from tests.node.lab import Lab


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
