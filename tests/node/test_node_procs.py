"""Processes identified by start time and cookie: exactly the right ones."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.node.base import procs
from tests.node.harness import until
from tests.processes import called


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()


def sleeper(children: list[subprocess.Popen[bytes]], env: dict[str, str]) -> int:
    child = subprocess.Popen(["sleep", "600"], env=env, start_new_session=True)
    children.append(child)
    until(lambda: procs.argv0(child.pid) == "sleep")
    return child.pid


def test_a_reused_pid_is_not_touched(children: list[subprocess.Popen[bytes]]) -> None:
    pid = sleeper(children, {})
    process = procs.look(pid)
    assert process is not None
    for other in (process._replace(start_ticks=process.start_ticks - 1), process._replace(pid=2**22 + 5)):
        assert not procs.send(other, signal.SIGKILL)
    assert procs.look(pid) == process
    assert procs.send(process, signal.SIGKILL)
    assert children[0].wait() == -9


def test_the_cookie_must_match_a_whole_entry(children: list[subprocess.Popen[bytes]]) -> None:
    run = f"test-{uuid.uuid4().hex}"
    cookie = f"ORCHESTRATE_TASK={run}/1/worker/1/n0nce"
    envs = {
        "first": {"ORCHESTRATE_TASK": f"{run}/1/worker/1/a"},
        "later": {"A": "b", "ORCHESTRATE_TASK": f"{run}/2/worker/1/b"},
        "tenth": {"ORCHESTRATE_TASK": f"{run}/1/worker/10/c"},
        "quoted": {"NOTE": cookie, "LINE": f"x\n{cookie}"},
        "suffixed": {"MY_ORCHESTRATE_TASK": f"{run}/1/worker/1/d"},
        "longer run": {"ORCHESTRATE_TASK": f"{run}x/1/worker/1/e"},
        "none": {},
    }
    pids = {sleeper(children, env): name for name, env in envs.items()}

    def bearing(prefix: str) -> set[str]:
        return {pids[process.pid] for process in procs.bearers(prefix)}

    assert bearing(run) == bearing(f"{run}/") == {"first", "later", "tenth"}
    assert bearing(f"{run}/1") == {"first", "tenth"}
    assert bearing(f"{run}/1/worker/1") == {"first"}
    assert bearing(f"{run}/1/worker") == {"first", "tenth"}
    assert bearing(f"{run}/1/wor") == set()

    assert procs.sweep(f"{run}/1/worker/1") == [
        {"pid": min(pids, key=lambda p: pids[p] != "first"), "argv0": "sleep"}
    ]
    assert bearing(run) == {"later", "tenth"}
    assert len(procs.sweep(run)) == 2
    alive = {pids[child.pid] for child in children if child.poll() is None}
    assert alive == {"quoted", "suffixed", "longer run", "none"}
    assert procs.sweep(run) == []


def test_a_sweep_kills_children_of_marked_processes_but_not_itself_or_its_ancestors() -> None:
    run = f"test-{uuid.uuid4().hex}"
    story = """
import os, sys
sys.path.insert(0, sys.argv[1])
from orchestrator.node.base import procs
cookie = {"ORCHESTRATE_TASK": sys.argv[2] + "/1/worker/0/n"}
bearer = os.posix_spawn("/bin/sh", ["sh", "-c", "env -i sleep 600 & wait"], cookie)
while len(procs.descendants(bearer, procs.scan())) < 1: pass
while procs.argv0(procs.descendants(bearer, procs.scan())[0].pid) != "sleep": pass
print(sorted(found["argv0"] for found in procs.sweep(sys.argv[2])))
"""
    root = Path(procs.__file__).parents[3]
    environ = {**os.environ, "ORCHESTRATE_TASK": f"{run}/1/worker/9/n"}
    done = called([sys.executable, "-c", story, str(root), run], env=environ, timeout=20)
    assert (done.stdout, done.stderr, done.returncode) == ("['sh', 'sleep']\n", "", 0)
