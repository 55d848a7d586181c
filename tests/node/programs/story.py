"""A task's life told by any Python: argv is the folder of the package, and a folder of its own."""

from __future__ import annotations

import os
import sys
import time

sys.path.insert(0, sys.argv[1])

from orchestrator.node.base import paths, procs
from orchestrator.node.task import state, tasks

ROOT = paths.open_root(os.path.join(sys.argv[2], "state"))  # noqa: PTH118 - Python 3.8 without pathlib
RUN = f"test-{os.getpid()}-{time.time_ns()}"


def run(task: str, *argv: str) -> int:
    spec = {"argv": list(argv), "env": {"A": "b"}, "cwd": sys.argv[2], "grace": 5.0}
    folder = ROOT.task(RUN, "1", task)
    claim = tasks.take_claim(folder)
    with open(tasks.begin(ROOT, folder, spec, claim, []), "rb") as answer:  # noqa: PTH123
        for fd in claim:
            os.close(fd)
        return int(tasks.result(folder, answer.read())["pid"])


def over(task: str) -> state.State:
    while not state.is_final(state.read(ROOT.task(RUN, "1", task))):
        time.sleep(0.005)
    return state.read(ROOT.task(RUN, "1", task))


if __name__ == "__main__":
    run("worker/0", "sh", "-c", "echo hello; exit 3")
    run("worker/1", "sleep", "600")
    leader = run("worker/2", "sh", "-c", "setsid sleep 600 & wait")
    state.stop(ROOT.task(RUN, "1", "worker/1"), 5.0, kill=False)
    process = procs.look(leader)
    assert process is not None
    os.kill(process.ppid, 9)
    first, second, third = (over(f"worker/{index}") for index in range(3))
    assert (first["exit_code"], second["exit_signal"], third["state"]) == (3, 15, "lost")
    with open(ROOT.task(RUN, "1", "worker/0").log, "rb") as file:  # noqa: PTH123
        assert file.read() == b"hello\n"
    while state.is_locked(ROOT.task(RUN, "1", "worker/2")):
        time.sleep(0.005)
    assert procs.sweep(RUN) == []
    print("told")
