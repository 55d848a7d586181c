"""The stacks of a task's processes, whatever they hang in, and nobody hurt by the question."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pytest

from orchestrator.node.base import procs
from orchestrator.node.look import stacks as op
from orchestrator.node.task import environ, state
from tests.node.harness import Node, until

SLEEP = """
import time
def nap():
    time.sleep(600)
print("up", flush=True)
nap()
"""


class _Agent:
    """What the operation sees of an agent."""

    def __init__(self, node: Node) -> None:
        self.paths = node.paths


def stacks(node: Node, **fields: Any) -> list[dict[str, Any]]:
    """The processes of worker/0, or of `task`."""
    task = fields.pop("task", "worker/0")
    found = op.stacks(_Agent(node), {"run": node.run, **fields})["tasks"]  # type: ignore[arg-type]
    return next((one["processes"] for one in found if one["task"] == task), [])


def up(node: Node, task: str = "worker/0") -> None:
    until(lambda: b"up\n" in node.log(task), what="the program is up")


def test_a_stopped_task_is_named_so_and_not_signalled(node: Node) -> None:
    pid = node.start(sys.executable, "-c", SLEEP)["pid"]
    up(node)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: procs.status(pid) == "T")
    (found,) = stacks(node)
    assert (found["state"], found["text"]) == ("T", "")
    assert "stopped" in found["why"]
    assert not procs.signals(pid)["ShdPnd"]
    os.kill(pid, signal.SIGCONT)
    until(lambda: "nap" in stacks(node)[0]["text"])


@pytest.mark.parametrize("argv", [("sleep", "600"), ("bash", "-c", "sleep 600 & wait")])
def test_a_task_that_is_no_python_is_told_of_and_lives_on(node: Node, argv: tuple[str, ...]) -> None:
    pid = node.start(*argv)["pid"]
    until(lambda: len(stacks(node)) == len(argv) - 1)
    assert not any(one["python"] or one["text"] for one in stacks(node))
    assert not procs.signals(pid)["SigCgt"] & (1 << (environ.SIGNAL - 1))
    assert not state.is_final(node.state_of())


def test_a_forked_child_and_a_spawned_one_are_shown_too(node: Node) -> None:
    code = """
import multiprocessing, os, sys, time
other = "print('child', flush=True)\\nimport time\\ndef other(): time.sleep(600)\\nother()"
def child():
    print("child", flush=True)
    time.sleep(600)
if __name__ == "__main__":
    fork = multiprocessing.get_context("fork").Process(target=child); fork.start()
    os.spawnl(os.P_NOWAIT, sys.executable, "python", "-c", other)
    print("up", flush=True)
    fork.join()
"""
    node.start(sys.executable, "-c", code)
    places = ("join", "child", "other")

    def shown() -> list[list[str]]:
        return [[name for name in places if f"in {name}\n" in one["text"]] for one in stacks(node)]

    until(lambda: shown() == [["join"], ["child"], ["other"]], what="each is seen where it stays")


# --- the chained sitecustomize ---


def test_a_handler_that_was_there_first_wins(node: Node) -> None:
    handler = f"import signal; signal.signal({environ.SIGNAL}, lambda *_: print('mine', flush=True))"
    (node.folder / "sitecustomize.py").write_text(handler)
    pid = node.start(sys.executable, "-c", SLEEP, env={"PYTHONPATH": str(node.folder)})["pid"]
    up(node)
    assert "not made ready" in stacks(node)[0]["why"]
    os.kill(pid, environ.SIGNAL)
    until(lambda: b"mine" in node.log())
