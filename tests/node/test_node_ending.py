"""How a task ends: by itself, when asked, when it does not listen, and with what it leaves behind."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import node as node_package
from orchestrator.node.base import ending, paths, procs
from orchestrator.node.task import control, state
from tests.node.harness import Node, dead, identities, new_run, until


@pytest.mark.parametrize(
    ("argv", "code", "signum"),
    [
        (("true",), 0, None),
        (("sh", "-c", "exit 3"), 3, None),
        (("sh", "-c", "exit 137"), 137, None),  # not the same as signal 9
        (("sh", "-c", "kill -9 $$"), None, 9),
        (("sh", "-c", "kill -SEGV $$"), None, signal.SIGSEGV),
        (("sh", "-c", "kill -TERM $$"), None, signal.SIGTERM),
    ],
)
def test_exit_code_and_signal_are_two_facts(
    node: Node, argv: tuple[str, ...], code: int | None, signum: int | None
) -> None:
    node.start(*argv)
    found = node.final()
    assert (found["state"], found["exit_code"], found["exit_signal"]) == (state.EXITED, code, signum)
    assert found["want"] == state.WANT_RUN
    assert found["started_ns"] < found["ended_ns"] < time.time_ns()


def test_a_stop_lets_the_task_save_and_reports_its_own_exit(node: Node) -> None:
    node.python("saves.py")
    until(lambda: node.log() == b"up\n")
    assert control.stop(node.task(), 20.0, kill=False)
    found = node.final()
    assert (found["exit_code"], found["want"], node.log()) == (42, state.WANT_STOP, b"up\nsaved\n")
    assert not control.stop(node.task(), 20.0, kill=False)


def test_a_task_that_swallows_term_is_killed_after_the_grace_with_its_family(node: Node) -> None:
    node.python("family.py", "deaf")
    family = identities(node.folder, 5)
    begun = time.monotonic()
    node.stop(0.4)
    until(lambda: node.state_of()["state"] == state.STOPPING)
    found = node.final()
    assert 0.4 <= time.monotonic() - begun < 10.0
    assert (found["exit_signal"], found["want"]) == (9, state.WANT_STOP)
    assert dead(family)


def test_a_kill_does_not_wait_and_overtakes_a_stop(node: Node) -> None:
    node.python("family.py", "deaf")
    family = identities(node.folder, 5)
    node.stop(600.0)
    until(lambda: node.state_of()["state"] == state.STOPPING)
    begun = time.monotonic()
    node.stop(kill=True)
    found = node.final()
    assert time.monotonic() - begun < 10.0
    assert (found["exit_signal"], found["want"]) == (9, state.WANT_KILL)
    assert dead(family)


def test_a_second_stop_with_less_grace_counts_and_one_with_more_does_not(node: Node) -> None:
    node.python("family.py", "deaf")
    identities(node.folder, 5)
    begun = time.monotonic()
    node.stop(600.0)
    node.stop(0.3)
    node.stop(600.0)
    node.final()
    assert time.monotonic() - begun < 60.0


def test_a_stop_in_the_very_moment_of_the_start_is_not_lost(node: Node) -> None:
    node.start("sleep", "600")
    node.stop(20.0)
    assert node.final()["exit_signal"] == signal.SIGTERM


def test_a_stopped_process_hears_term_all_the_same(node: Node) -> None:
    leader = node.python("saves.py")["pid"]
    until(lambda: node.log() == b"up\n")
    os.kill(leader, signal.SIGSTOP)
    node.stop(20.0)
    assert node.final()["exit_code"] == 42


def test_what_the_leader_leaves_behind_ends_too_and_its_exit_counts(node: Node) -> None:
    node.python("family.py", "ends", "0")
    family = identities(node.folder, 4)
    found = node.final()
    assert (found["state"], found["exit_code"], found["exit_signal"]) == (state.EXITED, 0, None)
    assert "left 4 processes behind" in found["message"]
    assert dead(family)


def test_a_stop_that_comes_after_the_leader_s_end_is_not_what_ended_it(node: Node) -> None:
    """Else the task that failed first passes for one that was stopped because of another."""
    node.python("family.py", "ends", "3")
    family = identities(node.folder, 4)
    until(lambda: node.state_of()["state"] == state.STOPPING)
    node.stop(kill=True)
    found = node.final()
    assert (found["state"], found["exit_code"], found["want"]) == (state.EXITED, 3, state.WANT_RUN)
    assert dead(family)


def test_a_daemon_that_hears_term_may_clean_up(node: Node) -> None:
    script = "trap 'echo cleaned > cleaned; exit 0' TERM; touch up; while :; do sleep 0.02; done"
    node.start("sh", "-c", f'setsid sh -c "{script}" & while [ ! -e up ]; do sleep 0.01; done')
    found = node.final()
    assert found["exit_code"] == 0
    assert (node.folder / "cleaned").exists()


def test_a_child_that_keeps_the_output_open_does_not_delay_the_end(node: Node) -> None:
    begun = time.monotonic()
    node.start("sh", "-c", "setsid sleep 600 & echo done")
    assert node.final()["exit_code"] == 0
    assert node.log() == b"done\n"
    assert time.monotonic() - begun < 60.0


@pytest.mark.parametrize("kill", [True, False])
@pytest.mark.parametrize("program", ["forks.py", "hops.py"])
def test_a_task_that_forks_all_the_time_does_not_outrun_the_kill(
    node: Node, program: str, kill: bool
) -> None:
    node.python(program)
    until(lambda: b"going" in node.log(), what="it forks")
    node.stop(0.2, kill=kill)
    node.final(seconds=20.0)
    node.alone()


def test_a_leader_whose_first_thread_ended_is_alive_until_all_have(node: Node) -> None:
    code = (
        "import ctypes, os, threading, time\n"
        "def ended(): return open(f'/proc/{os.getpid()}/stat').read().rpartition(')')[2].split()[0] == 'Z'\n"
        "def rest():\n"
        " while not ended(): time.sleep(0.01)\n"
        " print('last word', flush=True); time.sleep(600)\n"
        "threading.Thread(target=rest).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    node.start(sys.executable, "-c", code)
    until(lambda: node.log() == b"last word\n")
    assert not state.is_final(node.state_of())
    node.stop(20.0)
    assert node.final()["exit_signal"] == signal.SIGTERM


@pytest.mark.parametrize(
    ("endless", "sibling", "ends"),
    [(True, None, True), (False, None, False), (False, "exit 0", False), (False, "exit 1", True)],
)
def test_the_lifeline_ends_who_depends_on_a_keeper(
    node: Node, endless: bool, sibling: str | None, ends: bool
) -> None:
    if sibling:
        node.start("sh", "-c", sibling, task="worker/9")
        node.final("worker/9")
    node.start("sleep", "600", endless=endless, lifeline=0.3)
    if not ends:
        until(_lifelines(node, "worker/0", 3), what="three lifelines are over")
        assert node.state_of()["state"] == state.RUNNING
        return
    found = node.final()
    assert (found["exit_signal"], found["message"]) == (15, "no keeper for 0.3 s")


def _lifelines(node: Node, task: str, count: int) -> Any:
    over = node.state_of(task)["started_ns"] + count * 300_000_000
    return lambda: time.time_ns() > over


def test_a_keeper_that_speaks_keeps_a_parameter_server_alive(node: Node) -> None:
    keeper = Path(node.paths.keeper(node.run))
    node.start("sleep", "600", task="ps/0", endless=True, lifeline=2.0)
    over = time.monotonic() + 3.0
    while time.monotonic() < over:
        keeper.touch()
        time.sleep(0.02)
    assert node.state_of("ps/0")["state"] == state.RUNNING
    assert node.final("ps/0")["message"] == "no keeper for 2 s"


@pytest.fixture
def nobodys() -> Iterator[Path]:
    """A folder that user 65534 owns, with a Python that may become root, as `sudo` does."""
    if os.geteuid() != 0:
        pytest.skip("a program that becomes root needs root to be made")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    shutil.copy(Path(sys.executable).resolve(), folder / "python")
    os.chown(folder, 65534, 65534)
    (folder / "python").chmod(0o4755)
    yield folder
    for process in procs.scan():
        if str(folder) in procs.argv0(process.pid):
            ending.send(process, signal.SIGKILL)
    shutil.rmtree(folder)


def _import_all() -> None:
    for module in pkgutil.walk_packages(node_package.__path__, f"{node_package.__name__}."):
        if not module.name.endswith(".loader"):  # it runs when it is imported
            importlib.import_module(module.name)


def test_what_became_root_cannot_be_killed_and_the_task_is_not_said_to_be_over(nobodys: Path) -> None:
    become = "import os, time; os.setuid(0); print(os.getpid(), flush=True); time.sleep(600)"
    probe = subprocess.run(
        [nobodys / "python", "-c", "import os; os.setuid(0)"], user=65534, capture_output=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip(f"no program may become root here: {probe.stderr.decode()}")
    run = new_run()
    child = os.fork()
    if child == 0:
        try:
            _import_all()  # that user may not be able to read the clone
            os.setuid(65534)
            os.environ["HOME"] = str(nobodys)
            made = Node(paths.open_root(str(nobodys / "state")), nobodys, run)
            made.start("sh", "-c", f"{nobodys}/python -c '{become}' & wait")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    mine = Node(paths.Paths(str(nobodys / "state")), nobodys, run)
    root = int(until(mine.log))
    mine.stop(kill=True)
    until(lambda: f"KILL does not end pid {root}" in mine.state_of()["message"])
    assert mine.state_of()["state"] == state.STOPPING
    assert control.is_locked(mine.task())
    os.kill(root, signal.SIGKILL)
    found = mine.final()
    assert (found["state"], found["exit_signal"], found["message"]) == (state.EXITED, 9, "")
    mine.alone()


@pytest.mark.parametrize(
    ("script", "ends"),
    [("exec sleep 600", True), ("while :; do echo step; sleep 0.1; done", False)],
    ids=["silent", "prints"],
)
def test_a_task_that_may_have_been_replaced_ends_unless_it_goes_on(
    node: Node, script: str, ends: bool
) -> None:
    """It prints as long as its peers are with it; these are ended before it is replaced."""
    node.start("sh", "-c", script, fence=2.0)
    if not ends:
        until(_lifelines(node, "worker/0", 10), what="a fence and a half are over")
        assert node.state_of()["state"] == state.RUNNING
        return
    found = node.final()
    assert found["exit_signal"] in (signal.SIGTERM, signal.SIGKILL)
    assert found["message"].startswith("no keeper, and nothing printed, for 2 s"), found["message"]


def test_a_keeper_that_speaks_keeps_a_silent_task_that_could_be_replaced(node: Node) -> None:
    keeper = Path(node.paths.keeper(node.run))
    node.start("sleep", "600", fence=2.0)
    over = time.monotonic() + 3.0
    while time.monotonic() < over:
        keeper.touch()
        time.sleep(0.02)
    assert node.state_of()["state"] == state.RUNNING
    node.stop(0.0, kill=True)
    node.final()
