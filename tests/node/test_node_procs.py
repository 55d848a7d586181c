"""Processes by identity and by cookie: the right ones, and never another."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.node.base import ending, procs
from orchestrator.node.base.fault import NodeError
from tests.node.harness import until
from tests.node.identity import identify


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


def test_a_name_with_brackets_and_blanks_hides_nothing(tmp_path: Path) -> None:
    program = tmp_path / ") S 1 1 (x"
    shutil.copy("/bin/sleep", program)
    child = subprocess.Popen([program, "600"])
    try:
        until(lambda: procs.argv0(child.pid) == str(program))
        assert procs.look(child.pid).ppid == os.getpid()  # type: ignore[union-attr]
    finally:
        child.kill()
        child.wait()


def test_an_identity_dies_with_its_process_and_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["sleep", "600"])
    identity = identify(child.pid)
    assert identity is not None
    assert identity.alive()
    child.kill()
    until(lambda: not identity.alive(), what="it is a zombie")
    assert procs.look(child.pid) is not None
    child.wait()
    assert not identity.alive()
    assert identify(child.pid) is None


def test_the_same_pid_with_another_start_or_in_another_incarnation_is_not_touched(
    children: list[subprocess.Popen[bytes]],
) -> None:
    pid = sleeper(children, {})
    process, identity = procs.look(pid), identify(pid)
    assert process is not None
    assert identity is not None
    for other in (process._replace(start_ticks=process.start_ticks - 1), process._replace(pid=2**22 + 5)):
        assert not ending.send(other, signal.SIGKILL)
    assert not identity._replace(start_ticks=identity.start_ticks + 1).alive()
    assert not identity._replace(incarnation="another boot").alive()
    assert identity.alive()
    assert ending.send(process, signal.SIGKILL)
    assert children[0].wait() == -9


def test_the_cookie_is_one_whole_entry(children: list[subprocess.Popen[bytes]]) -> None:
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

    assert ending.sweep(f"{run}/1/worker/1") == [
        {"pid": min(pids, key=lambda p: pids[p] != "first"), "argv0": "sleep"}
    ]
    assert bearing(run) == {"later", "tenth"}
    assert len(ending.sweep(run)) == 2
    alive = {pids[child.pid] for child in children if child.poll() is None}
    assert alive == {"quoted", "suffixed", "longer run", "none"}
    assert ending.sweep(run) == []


def test_a_sweep_takes_the_bearers_children_and_spares_itself_and_its_ancestors() -> None:
    run = f"test-{uuid.uuid4().hex}"
    story = """
import os, sys
sys.path.insert(0, sys.argv[1])
from orchestrator.node.base import ending, procs
cookie = {"ORCHESTRATE_TASK": sys.argv[2] + "/1/worker/0/n"}
bearer = os.posix_spawn("/bin/sh", ["sh", "-c", "env -i sleep 600 & wait"], cookie)
while len(procs.descendants(bearer, procs.scan())) < 1: pass
while procs.argv0(procs.descendants(bearer, procs.scan())[0].pid) != "sleep": pass
print(sorted(found["argv0"] for found in ending.sweep(sys.argv[2])))
"""
    root = Path(procs.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", story, str(root), run],
        env={**os.environ, "ORCHESTRATE_TASK": f"{run}/1/worker/9/n"},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("['sh', 'sleep']\n", "", 0)


def test_a_process_of_another_user_is_said_and_not_counted_as_gone() -> None:
    if os.geteuid() != 0:
        pytest.skip("starting a process of another user needs root")
    run = f"test-{uuid.uuid4().hex}"
    bearer = os.fork()
    if bearer == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", "600"], {})  # root's, below
        os.setuid(65534)
        os.execve("/bin/sleep", ["sleep", "600"], {"ORCHESTRATE_TASK": f"{run}/1/worker/0/n"})  # nobody's
    until(lambda: procs.argv0(bearer) == "sleep" and procs.descendants(bearer, procs.scan()))
    (below,) = procs.descendants(bearer, procs.scan())
    until(lambda: procs.argv0(below.pid) == "sleep")
    read, write = os.pipe()
    sweeper = os.fork()
    if sweeper == 0:
        os.setuid(65534)
        try:
            ending.sweep(run, 2.0)
        except NodeError as error:
            os.write(write, f"{error.kind}: {error.what}".encode())
        finally:
            os._exit(0)
    os.waitpid(sweeper, 0)
    os.close(write)
    said = os.read(read, 4096).decode()
    os.close(read)
    os.waitpid(bearer, 0)
    os.kill(below.pid, signal.SIGKILL)
    assert said.startswith(f"orphan: processes of {run} cannot be killed: pid {below.pid} (sleep)")
