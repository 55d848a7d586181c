"""Stacks as they come from real processes: read, folded, and the odd task found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator import wire
from orchestrator.model import Completion
from orchestrator.names import RunId
from orchestrator.phases.hang import keep
from orchestrator.run import stacks
from orchestrator.run.stacks import Stand
from orchestrator.store import RunFolder
from tests.unit.plans import host, make

DUMPS = Path(__file__).parent / "stacks"  # three tasks of TensorFlow 2.21; worker/1 sleeps before a step
WORK = "/home/ada/orchestrate/runs/20261121-021927-9g92/work"


def process(text: str = "", **facts: Any) -> wire.StackProcess:
    known = {"pid": 7, "argv0": "python", "python": True, "state": "S", "waits": "", "cwd": WORK, "why": ""}
    return wire.read({**known, "cpu": 0, "text": text, **facts}, wire.StackProcess, "a process")


def dumped(name: str, task: str, step: int | None = None, **facts: Any) -> Stand:
    number = int(task.rpartition("/")[2]) + 1
    text = (DUMPS / f"{name}.txt").read_text()
    return stacks.stand(task, f"gpu-0{number}", [process(text, **facts)], step)


def standing(
    task: str, *places: str, step: int | None = None, before: tuple[str, ...] = (), **more: Any
) -> Stand:
    """A task at made-up places: `train.py:3 in f`, a library's with its path; `before` is of a thread."""
    text = ""
    for thread in filter(None, (before, places)):
        frames = (re.sub(r"(.+):(\d+) in", r'  File "\1", line \2 in', place) + "\n" for place in thread)
        text += "Thread 0x1 (most recent call first):\n" + "".join(frames)
    return stacks.stand(task, "h", [process(text, **more)], step)


COLLECTIVE = "/e/lib/python3.11/site-packages/tensorflow/python/eager/execute.py:53 in quick_execute"
DATA = "/e/lib/python3.11/site-packages/tensorflow/python/ops/gen_dataset_ops.py:3 in iterator_get_next"
WAIT = "/usr/lib/python3.11/threading.py:320 in wait"
COORDINATOR = "/e/site-packages/tensorflow/python/distribute/coordinator/cluster_coordinator.py:9 in join"


def odd(*stands: Stand, completion: Completion = Completion.ALL) -> list[str]:
    return [one.task for one in stacks.find(stands, completion).odd]


@pytest.mark.parametrize("how", ["loop", "fit"])
def test_a_gang_that_waits_for_one_that_sleeps(how: str) -> None:
    stands = [dumped(f"{how}-{index % 2}", f"worker/{index}") for index in range(3)]
    finding = stacks.find(stands, Completion.ALL)
    line = {"loop": "train.py:25 in train", "fit": "train.py:42 in <module>"}[how]
    assert stacks.sentence(finding, hang=True) == (
        f"worker/1 on gpu-02 hangs at train.py:9 in nap; worker/[0,2] wait for it at {line}"
    )
    if how == "fit":
        assert stacks.folded(finding) == [
            "worker/1  gpu-02",
            "  train.py:9 in nap",
            "  train.py:38 in on_train_batch_end",
            "  ... 6 in tf_keras",
            "  train.py:42 in <module>",
            "",
            "worker/[0,2]  gpu-[01,03]",
            "  tensorflow/python/eager/execute.py:53 in quick_execute",
            "  ... 10 in tensorflow, tf_keras",
            "  train.py:42 in <module>",
        ]


def waiting(task: str, **more: Any) -> Stand:
    return standing(task, COLLECTIVE, "/t.py:5 in f", **more)


ZERO, GANG = waiting("worker/0"), [waiting(f"worker/{index}") for index in range(3)]
ODD: list[tuple[str, list[Stand], list[str]]] = [
    ("nobody", GANG, []),
    ("the stopped one, wherever it stands", [ZERO, waiting("worker/1", state="T")], ["worker/1"]),
    ("one that waits for its data", [ZERO, standing("worker/1", DATA, "/t.py:5 in f")], ["worker/1"]),
    ("one in a lock", [ZERO, standing("worker/1", WAIT, "/t.py:7 in g")], ["worker/1"]),
    ("one that is behind", [waiting(f"worker/{i}", step=9 - i // 2) for i in range(3)], ["worker/2"]),
    ("one that says nothing", [ZERO, stacks.stand("worker/1", "h", [process()])], ["worker/1"]),
    ("never the evaluator", [*GANG, standing("evaluator/0", "/t.py:70 in wait")], []),
]


@pytest.mark.parametrize(("who", "stands", "names"), ODD, ids=[case[0] for case in ODD])
def test_the_odd_one(who: str, stands: list[Stand], names: list[str]) -> None:
    assert odd(*stands) == names, who


def test_with_parameter_servers_only_the_chief_can_be_odd() -> None:
    others = [standing("worker/0", "/t.py:3 in serve"), standing("ps/0", "/t.py:3 in serve")]
    waits = standing("chief/0", WAIT, COORDINATOR, "/t.py:9 in main")
    assert odd(waits, *others, completion=Completion.CHIEF) == []
    assert odd(standing("chief/0", "/t.py:8 in read"), *others, completion=Completion.CHIEF) == ["chief/0"]


def test_a_task_that_has_just_ended_stands_nowhere() -> None:
    def of(*processes: wire.StackProcess) -> wire.TaskStacks:
        return wire.TaskStacks("1", "worker/0", processes, 0)

    gone, zombie, alive = process(state=""), process(state="Z"), process(state="S")
    assert stacks.living(of()) is None
    assert stacks.living(of(gone, zombie)) is None
    left = stacks.living(of(gone, alive))
    assert left is not None
    assert left.processes == (alive,)


def test_a_host_does_not_say_where_the_tasks_of_another_one_stand(tmp_path: Path) -> None:
    def told(*tasks: tuple[str, str]) -> wire.StacksOf:
        return wire.StacksOf(
            tuple(wire.TaskStacks(attempt, task, (process(),), 0) for task, attempt in tasks)
        )

    folder = RunFolder(tmp_path, RunId("r1"))
    folder.path.mkdir()
    lies = [("worker/1", "1"), ("worker/0", "99"), ("worker/7", "1")]
    answers = {"a": told(("worker/0", "1"), *lies), "b": told(("worker/1", "1"))}
    taken = keep(folder, make(host("a"), host("b")), answers, {}, {}, hang=False, at=1.0)
    assert [(one.task, one.attempt, name) for name, one in taken.tasks] == [
        ("worker/0", "1", "a"),
        ("worker/1", "1", "b"),
    ]


LABEL = "train.py:6 in label"
SCRIPT_OPS = "/e/site-packages/tensorflow/python/ops/script_ops.py:269 in __call__"
FEED = "train.py:4 in feed"
IN_QUEUE = ("/usr/lib/python3.11/threading.py:320 in wait", "/usr/lib/python3.11/queue.py:140 in put", FEED)
GET = (WAIT, "/usr/lib/python3.11/queue.py:171 in get", "train.py:9 in <module>")
FIT = (COLLECTIVE, "train.py:9 in <module>")


@pytest.mark.parametrize(
    ("main", "beside", "suspect", "place"),
    [
        (FIT, {1: (LABEL, SCRIPT_OPS)}, ["worker/1"], "at train.py:6 in label, beside its main thread"),
        (FIT, {0: (FEED,)}, [], ""),  # it may only watch
        (
            GET,
            {0: IN_QUEUE, 1: (FEED,)},
            ["worker/1"],
            "at train.py:9 in <module>, in threading.py:320 in wait",
        ),
        (FIT, {0: (LABEL, SCRIPT_OPS), 1: (LABEL, SCRIPT_OPS)}, [], ""),
    ],
)
def test_of_tasks_at_one_line_the_one_whose_data_loader_works_is_the_suspect(
    main: tuple[str, ...], beside: dict[int, tuple[str, ...]], suspect: list[str], place: str
) -> None:
    stands = [standing(f"worker/{n}", *main, before=beside.get(n, ())) for n in range(2)]
    assert odd(*stands) == suspect
    if place:
        assert stacks.place(stands[1]) == place


def test_a_main_thread_that_has_ended_is_the_suspect() -> None:
    hook = "/var/lib/state/site/784d6821/sitecustomize.py:113 in shut_down"
    leaving = standing("worker/1", "/usr/lib/python3.11/threading.py:1583 in _shutdown", hook, before=(FEED,))
    finding = stacks.find([standing("worker/0", "train.py:9 in <module>"), leaving], Completion.ALL)
    said = "worker/1 on h hangs with its main thread over, and others alive at train.py:4 in feed"
    assert stacks.sentence(finding, hang=True) == said
