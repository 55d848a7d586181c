"""Conclusions about tasks as a group: hangs, ends, stacks, and separate training."""

import re
import socket
from pathlib import Path
from typing import Any

import pytest

from orchestrator import events as ev
from orchestrator import wire
from orchestrator.diagnosis.ends import GangDecision, decide, succeeded
from orchestrator.events import PeersReported, TaskExited
from orchestrator.model import Completion, TaskId
from orchestrator.names import RunId
from orchestrator.node.task import meeting
from orchestrator.phases.hang import keep
from orchestrator.run import hang, stacks
from orchestrator.run.stacks import Stack
from orchestrator.run.view import View, apply
from orchestrator.store import RunFolder
from orchestrator.wire import Peers
from tests.unit.plans import host, make

A, B = (TaskId.parse(f"worker/{index}") for index in range(2))
PATIENCE = 10.0

Said = tuple[float, TaskId, int | None]  # time, task, and a step or only a line


def after(*story: Said, now: float, since: float = 0.0, completion: Completion = Completion.ALL) -> str:
    lives = {task: hang.Life(0.0) for task in (A, B)}
    for at, task, step in story:
        if step is None:
            hang.record_activity(lives, task, at)
        else:
            hang.stepped(lives, task, step, at)
    found = hang.look(lives, PATIENCE, now, since=since, completion=completion)
    return f"{found.kind} {','.join(map(str, found.tasks))} {found.seconds:g}" if found else ""


def steps(task: TaskId, *times: float) -> list[Said]:
    return [(at, task, number) for number, at in enumerate(times, 1)]


BOTH = f"{A},{B}"
BEHIND = [*steps(B, 1, 2), *steps(A, *range(1, 30))]
STORIES: list[tuple[str, list[Said], float, str]] = [
    ("they never began", [], 10, f"silent {BOTH} 10"),
    ("one prints: that is life", [(5, A, None)], 14, ""),
    ("both are silent", [(5, A, None), (3, B, 1)], 15, f"silent {BOTH} 10"),
    ("only the chief prints", [(at, A, None) for at in range(60)], 60, ""),
    ("only the chief reports", steps(A, *range(1, 60)), 60, ""),
    ("one stays behind, from the third step of the other on", BEHIND, 29.5, f"lagging {B} 26.5"),
    ("it prints: it is slow, and lives", [*BEHIND, (28, B, None)], 29, ""),
    ("it catches up", [*BEHIND, (28, B, 29)], 29, ""),
    ("it has made such pauses before", [*steps(B, 1, 9), *steps(A, *range(1, 25))], 24.5, ""),
    ("after a long evaluation it is soon there", [*steps(B, 1, 2), *steps(A, 1, 2, 40)], 40.5, ""),
    ("both stopped at one step: silent", [*steps(B, 1, 2), *steps(A, 1, 2)], 13, f"silent {BOTH} 11"),
]


@pytest.mark.parametrize(("name", "story", "now", "verdict"), STORIES, ids=[story[0] for story in STORIES])
def test_hang_stories(name: str, story: list[Said], now: float, verdict: str) -> None:
    assert after(*sorted(story, key=lambda entry: entry[0]), now=now) == verdict, name


def test_silence_before_a_reconnect_does_not_count() -> None:
    assert after(now=30, since=25) == ""
    assert after(now=30, since=20) == f"silent {BOTH} 10"


def test_independently_stepping_tasks_do_not_lag() -> None:
    assert after(*sorted(BEHIND), now=29.5, completion=Completion.CHIEF) == ""


def test_parameter_servers_and_evaluators_are_not_watched() -> None:
    chief, worker, ps, evaluator = map(TaskId.parse, ("chief/0", "worker/0", "ps/0", "evaluator/0"))
    assert hang.watched([chief, worker, ps, evaluator]) == {chief, worker}
    assert hang.watched([evaluator]) == {evaluator}


def end(code: int | None, signal: int | None = None, lost: str = "", *, stopped: bool = False) -> TaskExited:
    return TaskExited("any/0", "z-01", "1", code, signal, lost, seconds=1, ended=10, stopped=stopped)


OK, BAD, KILLED, LOST = end(0), end(3), end(None, 9), end(None, None, "supervisor gone")
STOPPED = end(None, 15, stopped=True)
DONE = {"chief/0": OK, "worker/0": STOPPED, "ps/0": STOPPED}

WORKERS = "worker/0 worker/1"
CLUSTER = "chief/0 worker/0 ps/0"
EVALUATED = "worker/0 worker/1 evaluator/0"


@pytest.mark.parametrize(
    ("who", "ends", "completion", "decision", "good"),
    [
        (WORKERS, {"worker/0": OK}, Completion.ALL, GangDecision.GO_ON, False),
        (WORKERS, {"worker/0": OK, "worker/1": OK}, Completion.ALL, GangDecision.ENDED, True),
        (WORKERS, {"worker/1": BAD}, Completion.ALL, GangDecision.STOP_FAILED, False),
        (WORKERS, {"worker/1": LOST}, Completion.ALL, GangDecision.STOP_FAILED, False),
        (WORKERS, {"worker/0": STOPPED, "worker/1": BAD}, Completion.ALL, GangDecision.ENDED, False),
        (WORKERS, {"worker/0": STOPPED, "worker/1": STOPPED}, Completion.ALL, GangDecision.ENDED, False),
        (CLUSTER, {"worker/0": OK}, Completion.CHIEF, GangDecision.GO_ON, False),
        (CLUSTER, {"chief/0": OK}, Completion.CHIEF, GangDecision.STOP_COMPLETE, True),
        (CLUSTER, DONE, Completion.CHIEF, GangDecision.ENDED, True),
        (CLUSTER, {"ps/0": KILLED}, Completion.CHIEF, GangDecision.STOP_FAILED, False),
        (EVALUATED, {"worker/0": OK, "worker/1": OK}, Completion.ALL, GangDecision.EVALUATE, True),
        (EVALUATED, {"worker/0": OK, "evaluator/0": OK}, Completion.ALL, GangDecision.GO_ON, False),
        (EVALUATED, {"worker/1": OK, "evaluator/0": BAD}, Completion.ALL, GangDecision.STOP_FAILED, False),
        (f"{CLUSTER} evaluator/0", {"chief/0": OK}, Completion.CHIEF, GangDecision.EVALUATE, True),
        (
            "worker/0 service/0 evaluator/0",
            {"worker/0": OK, "evaluator/0": OK},
            Completion.ALL,
            GangDecision.STOP_COMPLETE,
            True,
        ),
    ],
)
def test_task_ends_decide_how_the_run_continues(
    who: str, ends: dict[str, TaskExited], completion: Completion, decision: GangDecision, good: bool
) -> None:
    known = {TaskId.parse(task): end for task, end in ends.items()}
    tasks = [TaskId.parse(word) for word in who.split()]
    assert decide(tasks, known, completion) is decision
    assert succeeded(tasks, known, completion) is good


# --- Stacks from real processes: parsed, folded, and the differing task found ---

DUMPS = Path(__file__).parent / "stacks"  # three tasks of TensorFlow 2.21; worker/1 sleeps before a step
WORK = "/home/ada/orchestrate/runs/20261121-021927-9g92/work"


def process(text: str = "", **facts: Any) -> wire.StackProcess:
    known = {"pid": 7, "argv0": "python", "python": True, "state": "S", "waits": "", "cwd": WORK, "why": ""}
    return wire.read({**known, "cpu": 0, "text": text, **facts}, wire.StackProcess, "a process")


def dumped(name: str, task: str, step: int | None = None, **facts: Any) -> Stack:
    number = int(task.rpartition("/")[2]) + 1
    text = (DUMPS / f"{name}.txt").read_text()
    return stacks.stack_of(task, f"gpu-0{number}", [process(text, **facts)], step)


def standing(
    task: str, *places: str, step: int | None = None, before: tuple[str, ...] = (), **more: Any
) -> Stack:
    """A task at made-up places: `train.py:3 in f`, a library's with its path; `before` is of a thread."""
    text = "".join(map(thread, filter(None, (before, places))))
    return stacks.stack_of(task, "h", [process(text, **more)], step)


def thread(places: tuple[str, ...]) -> str:
    frames = (re.sub(r"(.+):(\d+) in", r'  File "\1", line \2 in', place) + "\n" for place in places)
    return "Thread 0x1 (most recent call first):\n" + "".join(frames)


COLLECTIVE = "/e/lib/python3.11/site-packages/tensorflow/python/eager/execute.py:53 in quick_execute"
DATA = "/e/lib/python3.11/site-packages/tensorflow/python/ops/gen_dataset_ops.py:3 in iterator_get_next"
WAIT = "/usr/lib/python3.11/threading.py:320 in wait"
COORDINATOR = "/e/site-packages/tensorflow/python/distribute/coordinator/cluster_coordinator.py:9 in join"


def odd(*stands: Stack, completion: Completion = Completion.ALL) -> list[str]:
    return [one.task for one in stacks.find(stands, completion).odd]


@pytest.mark.parametrize("how", ["loop", "fit"])
def test_the_sleeping_task_is_named_among_waiting_ones(how: str) -> None:
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


def waiting(task: str, **more: Any) -> Stack:
    return standing(task, COLLECTIVE, "/t.py:5 in f", **more)


BACKWARD = ("/e/site-packages/torch/autograd/graph.py:1113 in _engine_run_backward", "train.py:16 in main")
QUEUE = "/usr/lib/python3.11/multiprocessing/connection.py:930 in wait"
LOADER = (QUEUE, "/e/site-packages/torch/utils/data/dataloader.py:730 in __next__", "train.py:14 in main")
WORKER = (QUEUE, "/e/site-packages/torch/utils/data/_utils/worker.py:310 in _worker_loop", *LOADER[1:])
DDP = standing("worker/0", *BACKWARD, before=WORKER)
ZERO, GANG = waiting("worker/0"), [waiting(f"worker/{index}") for index in range(3)]
ODD: list[tuple[str, list[Stack], list[str]]] = [
    ("nobody", GANG, []),
    ("the stopped one, wherever it stands", [ZERO, waiting("worker/1", state="T")], ["worker/1"]),
    ("one that waits for its data", [ZERO, standing("worker/1", DATA, "/t.py:5 in f")], ["worker/1"]),
    ("one in a lock", [ZERO, standing("worker/1", WAIT, "/t.py:7 in g")], ["worker/1"]),
    ("one that is behind", [waiting(f"worker/{i}", step=9 - i // 2) for i in range(3)], ["worker/2"]),
    ("one that says nothing", [ZERO, stacks.stack_of("worker/1", "h", [process()])], ["worker/1"]),
    ("of PyTorch, one in its own code", [DDP, standing("worker/1", "train.py:7 in save")], ["worker/1"]),
    ("of PyTorch, one that waits for its data", [DDP, standing("worker/1", *LOADER)], ["worker/1"]),
    (
        "on GPUs too",
        [standing("worker/0", "train.py:17 in main"), standing("worker/1", *LOADER)],
        ["worker/1"],
    ),
    ("never the evaluator", [*GANG, standing("evaluator/0", "/t.py:70 in wait")], []),
]


@pytest.mark.parametrize(("who", "stands", "names"), ODD, ids=[case[0] for case in ODD])
def test_the_odd_one(who: str, stands: list[Stack], names: list[str]) -> None:
    assert odd(*stands) == names, who


def test_a_task_s_stack_is_that_of_the_program_its_command_started() -> None:
    """With torchrun, one of two processes does not wait for the others and has a data loader process."""

    def dump(*places: str) -> wire.StackProcess:
        return process(thread(places))

    agent = "/e/site-packages/torch/distributed/elastic/agent/server/api.py:730 in _invoke_run"
    torchrun = dump(agent, "/e/bin/torchrun:8 in <module>")
    hangs = dump("train.py:7 in get", WORKER[1], "train.py:14 in main")
    for processes, place in (
        ([torchrun, dump(*BACKWARD), dump(*LOADER), hangs], "at train.py:7 in get, beside its main thread"),
        (
            [torchrun, dump(*BACKWARD)],
            "at train.py:16 in main, in torch/autograd/graph.py:1113 in _engine_run_backward",
        ),
        ([torchrun], f"at /e/bin/torchrun:8 in <module>, in {agent[17:]}"),
    ):
        assert stacks.place(stacks.stack_of("worker/0", "h", processes)) == place


def test_with_parameter_servers_only_the_chief_can_differ() -> None:
    others = [standing("worker/0", "/t.py:3 in serve"), standing("ps/0", "/t.py:3 in serve")]
    waits = standing("chief/0", WAIT, COORDINATOR, "/t.py:9 in main")
    assert odd(waits, *others, completion=Completion.CHIEF) == []
    assert odd(standing("chief/0", "/t.py:8 in read"), *others, completion=Completion.CHIEF) == ["chief/0"]


def test_a_task_that_just_ended_has_no_stack() -> None:
    def of(*processes: wire.StackProcess) -> wire.TaskStacks:
        return wire.TaskStacks("1", "worker/0", processes, 0)

    gone, zombie, alive = process(state=""), process(state="Z"), process(state="S")
    assert stacks.living(of()) is None
    assert stacks.living(of(gone, zombie)) is None
    left = stacks.living(of(gone, alive))
    assert left is not None
    assert left.processes == (alive,)


def test_a_host_cannot_report_stacks_of_another_host_s_tasks(tmp_path: Path) -> None:
    def reply(*tasks: tuple[str, str]) -> wire.StacksOf:
        return wire.StacksOf(
            tuple(wire.TaskStacks(attempt, task, (process(),), 0) for task, attempt in tasks)
        )

    folder = RunFolder(tmp_path, RunId("r1"))
    folder.path.mkdir()
    lies = [("worker/1", "1"), ("worker/0", "99"), ("worker/7", "1")]
    answers = {"a": reply(("worker/0", "1"), *lies), "b": reply(("worker/1", "1"))}
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
def test_among_tasks_at_one_line_the_one_with_a_busy_data_loader_is_the_suspect(
    main: tuple[str, ...], beside: dict[int, tuple[str, ...]], suspect: list[str], place: str
) -> None:
    stands = [standing(f"worker/{n}", *main, before=beside.get(n, ())) for n in range(2)]
    assert odd(*stands) == suspect
    if place:
        assert stacks.place(stands[1]) == place


def test_a_finished_main_thread_is_the_suspect() -> None:
    hook = "/var/lib/state/site/784d6821/sitecustomize.py:113 in shut_down"
    leaving = standing("worker/1", "/usr/lib/python3.11/threading.py:1583 in _shutdown", hook, before=(FEED,))
    finding = stacks.find([standing("worker/0", "train.py:9 in <module>"), leaving], Completion.ALL)
    message = "worker/1 on h hangs with its main thread ended, and others alive at train.py:4 in feed"
    assert stacks.sentence(finding, hang=True) == message


# --- Tasks that trained separately: when that is certain ---

NONE, IDLE, MET, UNKNOWN = Peers.NONE, Peers.IDLE, Peers.MET, Peers.UNKNOWN
TABLES = Path(__file__).parent / "tables"
PAIR = ("worker/0", "worker/1")


@pytest.mark.parametrize(
    ("states", "trains", "connected"),
    [
        ((NONE, NONE), True, False),
        ((NONE, NONE), False, False),
        ((IDLE, IDLE), True, True),
        ((NONE, IDLE), True, True),
        ((IDLE, IDLE), False, None),
        ((NONE, MET), True, None),
        ((IDLE, MET), True, None),
        ((NONE, UNKNOWN), True, None),
        ((NONE,), True, None),
    ],
)
def test_tasks_are_unconnected_only_if_every_node_reports_it(
    states: tuple[Peers, ...], trains: bool, connected: bool | None
) -> None:
    found = hang.apart(dict(zip(PAIR, states, strict=False)), PAIR[: len(states)], trains=trains)
    assert found == (None if connected is None else PeersReported(PAIR, connected))
    if found:  # the advice differs: a model outside the scope, or a strategy for one host
        assert ("MultiWorkerMirroredStrategy" in hang.separate_hint(found)) != (
            "scope()" in hang.separate_hint(found)
        )


def test_tasks_that_ignore_the_hook_are_named() -> None:
    found = hang.apart({"worker/0": MET, "worker/1": Peers.UNPATCHED}, PAIR, trains=False)
    assert found == PeersReported(PAIR[1:], connected=True, unpatched=True)
    assert hang.separate_warning(found).startswith("worker/1 train without the changes")
    assert "`PYTHONPATH=src:$PYTHONPATH`" in hang.separate_hint(found)


def test_the_warning_ends_with_its_attempt() -> None:
    view = View()
    for event in (
        ev.TaskStarted("worker/0", "a", "1", 7),
        PeersReported(PAIR, connected=False),
        ev.AttemptFailed("1", "worker/0 failed", "worker/0", (), "", 0.0, 1, 3),
        ev.AttemptPlanned("2", (("worker/0", "a"),)),
        ev.TaskStarted("worker/0", "a", "2", 8),
    ):
        view = apply(view, event, 0.0)
    assert view.apart is None


# --- connection tables as printed by the kernel: machines 10.9.0.1 and 10.9.0.2, also fd09::1 and 2 ---

ROWS = {
    side: [
        row for table in ("tcp", "tcp6") for row in meeting.parse((TABLES / f"{side}-{table}").read_text())
    ]
    for side in ("client", "server")
}
LOGIN, TASK, CLOSED = ["1550242"], ["1550222"], ["0"]  # the client's: to ports 22 and 2222, and a short one
LOOP, HARD_CODED, SIX = ["1550245", "1550246", "1550247"], ["1550238"], ["1550240"]
SERVED = ["1550213", "1550217"]  # the listener on 2222 and its connection
SERVED_BY_BOTH = ["1550215", "1550237"]  # listeners on 29500, for IPv6 and IPv4
ADDRESSES = ("10.9.0.1", "10.9.0.2", "fd09::2")


def places(*addresses: str) -> tuple[set[str], set[str]]:
    return {meeting.hexadecimal(one) for one in map(packed, addresses)}, {"08AE"}


def packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


@pytest.mark.parametrize(
    ("side", "rows", "own", "known", "met"),
    [
        ("client", LOOP, LOOP, ADDRESSES, False),  # a rendezvous with itself
        ("client", LOGIN, [], ADDRESSES, False),
        ("client", TASK, TASK, ADDRESSES, True),
        ("client", TASK, TASK, (), True),  # matched by the task's port if the peer has another address
        ("client", HARD_CODED, HARD_CODED, ADDRESSES, True),
        ("client", HARD_CODED, HARD_CODED, (), False),  # to the internet
        ("client", SIX, SIX, ("fd09::2",), True),
        ("client", SIX, SIX, ("10.9.0.2",), False),
        ("server", SERVED, SERVED, (), True),
        ("server", SERVED_BY_BOTH, SERVED_BY_BOTH, (), True),  # the peer's name did not resolve
        ("server", ["1550241"], [], ADDRESSES, False),
    ],
)
def test_connections_between_machines_are_detected(
    side: str, rows: list[str], own: list[str], known: tuple[str, ...], met: bool
) -> None:
    found = [row for row in ROWS[side] if row.inode in rows]
    assert len(found) == len(rows)
    assert meeting.far(found, set(own), *places(*known)) == met


@pytest.mark.parametrize(
    ("rows", "met"), [(CLOSED, True), (HARD_CODED, True), (SIX, True), (LOGIN, False), (LOOP, False)]
)
def test_closed_and_invisible_connections_count(rows: list[str], *, met: bool) -> None:
    found = [row for row in ROWS["client"] if row.inode in rows]
    assert meeting.far(found, set(), *places(*ADDRESSES)) == met


def test_connections_within_a_machine_are_matched_by_process() -> None:
    assert meeting.near(ROWS["client"], set(LOOP)) == set()
    assert meeting.near(ROWS["client"], {"1550246"}) == {"1550247"}
    assert meeting.near(ROWS["client"], {"1550222"}) == set()
    # Two networks on one machine: the other end is in a different table.
    assert meeting.near([*ROWS["client"], *ROWS["server"]], set(TASK)) == {"1550217"}
