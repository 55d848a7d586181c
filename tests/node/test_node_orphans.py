"""Whoever of us is killed, nothing of the task stays, and the state says so."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from orchestrator.node.task import state
from tests.node.harness import (
    PROGRAMS,
    Node,
    dead,
    guard_of,
    identities,
    kill_together,
    lives,
    supervisor_of,
    until,
)
from tests.processes import cookies

FAMILY = ("sh", "-c", f'python3 "{PROGRAMS}/family.py" & wait')


def test_a_killed_supervisor_leaves_nothing_within_two_seconds(node: Node) -> None:
    leader = node.start(*FAMILY)["pid"]
    family = identities(node.folder, 5)
    begun = time.time_ns()
    os.kill(supervisor_of(leader), signal.SIGKILL)
    found = node.final()
    assert dead(family)
    assert found["ended_ns"] - begun < 2_000_000_000
    assert (found["state"], found["exit_code"], found["exit_signal"]) == (state.LOST, None, None)
    assert "supervisor was killed by signal 9" in found["message"]
    node.alone()


def test_a_killed_guard_changes_nothing(node: Node) -> None:
    leader = node.python("family.py", "deaf")["pid"]
    family = identities(node.folder, 5)
    os.kill(guard_of(leader), signal.SIGKILL)
    node.stop(0.2)
    found = node.final()
    assert (found["state"], found["exit_signal"], dead(family)) == (state.EXITED, signal.SIGKILL, True)
    node.alone()


def test_both_killed_together_are_found_out_by_the_free_lock_and_the_cookie(node: Node) -> None:
    leader = node.start(*FAMILY)["pid"]
    family = identities(node.folder, 5)
    guard, supervisor = guard_of(leader), supervisor_of(leader)
    kill_together(guard, supervisor)
    until(lambda: not state.is_locked(node.task()), what="both are dead")
    assert not state.is_final(node.state_of())
    bearing = [identity for identity in family if cookies(identity.pid)]
    assert len(bearing) >= 3

    found = state.settle(node.task())
    assert found == node.state_of()
    assert found["state"] == state.LOST
    assert "killed together" in found["message"]
    assert dead(bearing)
    for identity in family:  # documented: without its cookie, and both of us killed, it is not found
        if lives(identity):
            os.kill(identity.pid, signal.SIGKILL)


def test_the_last_bytes_before_the_supervisor_was_killed_are_in_the_log(node: Node) -> None:
    leader = node.start("sh", "-c", "echo one; read x < /dev/zero; sleep 600")["pid"]
    until(lambda: node.log() == b"one\n")
    supervisor = supervisor_of(leader)
    os.kill(supervisor, signal.SIGSTOP)
    with Path(f"/proc/{leader}/fd/1").open("wb", buffering=0) as output:
        output.write(b"two\n")
    os.kill(supervisor, signal.SIGKILL)
    assert node.final()["state"] == state.LOST
    assert node.log() == b"one\ntwo\n"


def test_a_supervisor_that_is_told_to_end_stops_its_task_with_grace(node: Node) -> None:
    leader = node.python("saves.py")["pid"]
    until(lambda: node.log() == b"up\n")
    for pid in (guard_of(leader), supervisor_of(leader)):  # as at a shutdown of the machine
        os.kill(pid, signal.SIGTERM)
    found = node.final()
    assert (found["state"], found["exit_code"], node.log()) == (state.EXITED, 42, b"up\nsaved\n")
    assert found["message"] == "its supervisor was told to end (TERM)"


def test_a_state_that_a_power_failure_cut_short_is_lost_and_hides_no_other_task(node: Node) -> None:
    node.start("true")
    node.final()
    node.alone()
    Path(node.task().state).write_bytes(b"")
    found = state.settle(node.task())
    assert (found["state"], found["task"]) == (state.LOST, "worker/0")
    assert "restarted" in found["message"]
    assert node.state_of() == found
