"""How a task ends: by itself, when asked, when it does not listen, and with what it leaves behind."""

from __future__ import annotations

import os
import signal
import time

import pytest

from orchestrator.node.task import state
from tests.node.harness import Node, dead, identities, until


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


def goes_on(node: Node, seconds: float) -> bool:
    """Whether the task is alive so long after its start."""
    over = node.state_of()["started_ns"] + seconds * 1e9
    until(lambda: time.time_ns() > over, what=f"{seconds} s are over")
    return bool(node.state_of()["state"] == state.RUNNING)


def test_without_a_keeper_a_task_goes_on_whose_sibling_has_done_its_work(node: Node) -> None:
    node.start("true", task="worker/9")
    node.final("worker/9")
    node.start("sleep", "600", lifeline=0.3)
    assert goes_on(node, 0.9)


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
        assert goes_on(node, 3.0)
        return
    found = node.final()
    assert found["exit_signal"] in (signal.SIGTERM, signal.SIGKILL)
    assert found["message"].startswith("no keeper, and nothing printed, for 2 s"), found["message"]
