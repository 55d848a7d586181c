"""Whose stacks are taken for those of a task."""

from __future__ import annotations

from pathlib import Path

from orchestrator import wire
from orchestrator.names import RunId
from orchestrator.phases.hang import keep
from orchestrator.store import RunFolder
from tests.unit.plans import host, make


def task(name: str, attempt: str = "1") -> wire.TaskStacks:
    process = {"pid": 1, "argv0": "python", "python": True, "state": "S", "waits": "", "cpu": 0.0, "cwd": "/"}
    process |= {"how": "", "text": "", "why": "it shows none"}
    made = {"task": name, "attempt": attempt, "processes": [process], "more": 0}
    return wire.read(made, wire.TaskStacks, "a test")


def test_a_host_does_not_say_where_the_tasks_of_another_one_stand(tmp_path: Path) -> None:
    plan = make(host("a"), host("b"))
    folder = RunFolder(tmp_path, RunId("r1"))
    folder.path.mkdir()
    lies = [
        task("worker/1"),
        task("worker/0", "99"),
        task("worker/7"),
    ]
    good = {"a": wire.StacksOf((task("worker/0"), *lies)), "b": wire.StacksOf((task("worker/1"),))}
    taken = keep(folder, plan, good, {}, {}, hang=False)
    assert [(one.task, one.attempt, name) for name, one in taken.tasks] == [
        ("worker/0", "1", "a"),
        ("worker/1", "1", "b"),
    ]
