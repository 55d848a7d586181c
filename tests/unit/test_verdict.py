from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.diagnosis import lastwords, rules, statement, tracebacks
from orchestrator.diagnosis.rules import Rule, table
from orchestrator.diagnosis.statement import Raised, Statement
from orchestrator.diagnosis.tracebacks import LONGEST_LINE
from orchestrator.diagnosis.verdict import Hear, judge
from orchestrator.events import FailureKind, Loss, TaskExited

TAILS = Path(__file__).parent / "tails"  # what TensorFlow 2.21 printed; the task to blame is worker/2


def tail(name: str) -> tuple[str, ...]:
    return tuple((TAILS / f"{name}.txt").read_text().splitlines())


RAISED = tail("raised")
SOCKET_CLOSED = tail("socket_closed")
SOCKET_CLOSED_CUT = tail("socket_closed_cut")  # the exception's own line is further up than we look
UNHEALTHY = tail("unhealthy")
SHAPES = tail("shapes")
GROUP = tail("group")
PORT = tail("port")
OOM = tail("memory")
BARRIER = tail("barrier")  # worker/0 says that worker/1 never came
NO_LEADER = tail("barrier_no_leader")  # worker/1 of the same, when worker/0 never came
NAN = tail("nan")
INCARNATION = tail("incarnation")  # worker/0 says that worker/1 came back
LEADER_KILLED = tail("leader_killed")  # worker/1, when worker/0 was killed
KERAS_3 = (
    "ValueError: Attempt to convert a value (PerReplica:{}) with an unsupported type (<class ...>) to",
)
MODULE = ('  File "train.py", line 1, in <module>', "ModuleNotFoundError: No module named 'wandb'")
TRAINING = ("Epoch 1/3", " 3/5 [====>....] - ETA: 0s - loss: 2.3")
KEYBOARD = ('  File "train.py", line 2, in <module>', "KeyboardInterrupt")


def ended(
    task: int,
    at: float,
    *,
    code: int | None = None,
    signal: int | None = None,
    lost: str = "",
    stopped: bool = False,
    **more: Any,
) -> TaskExited:
    name, host = f"worker/{task}", f"gpu-0{task + 1}"
    return TaskExited(name, host, "1", code, signal, lost, 41.0, 1000.0 + at, stopped=stopped, **more)


STOPPED = ended(3, 4, signal=15, stopped=True)

# (what happened, exits with their last lines, the task, the cause)
STORIES: list[tuple[str, list[tuple[TaskExited, tuple[str, ...]]], str, str]] = [
    (
        "killed",
        [(ended(2, 0, signal=9), TRAINING), (ended(0, 1.1, code=1), SOCKET_CLOSED), (STOPPED, TRAINING)],
        "worker/2",
        "worker/2 on gpu-03 was killed by SIGKILL after 41 s",
    ),
    (
        "out of memory, on a machine that its peers share",
        [
            (ended(0, -0.3, code=1, oom_kills=1), SOCKET_CLOSED),
            (ended(2, 0, signal=9, oom_kills=1), TRAINING),
        ],
        "worker/2",
        "worker/2 on gpu-03 ran out of memory after 41 s: the kernel killed it",
    ),
    (
        "out of memory in a process of its own, and its words are of the others",
        [(ended(2, 0, code=1, oom_kills=1), SOCKET_CLOSED), (ended(0, 0.2, code=1), SOCKET_CLOSED)],
        "worker/2",
        "worker/2 on gpu-03 ran out of memory after 41 s: the kernel killed a process of it, and it exited…",
    ),
    ("exit 3", [(ended(2, 0, code=3), TRAINING)], "worker/2", "worker/2 on gpu-03 exited with 3 after 41 s"),
    (
        "an exception whose peers went first",
        [(ended(0, 0, code=1), SOCKET_CLOSED), (ended(2, 3, code=1), RAISED)],
        "worker/2",
        "worker/2 on gpu-03 exited with 1 after 41 s: ValueError: a bug of the user",
    ),
    (
        "an exception that hung on its way down",
        [
            (ended(0, 0, code=1), SOCKET_CLOSED),
            (ended(2, 3, signal=9, stopped=True), RAISED),
            (STOPPED, KEYBOARD),
        ],
        "worker/2",
        "worker/2 on gpu-03 was stopped, by SIGKILL after 41 s",
    ),
    (
        "frozen",
        [
            (ended(0, 0, code=1), UNHEALTHY),
            (ended(2, 3, signal=9, stopped=True), TRAINING),
            (STOPPED, TRAINING),
        ],
        "worker/2",
        "worker/2 on gpu-03 stopped answering, says worker/0 on gpu-01",
    ),
    (
        "a task that was done before the others",
        [(ended(0, 2, code=1), SOCKET_CLOSED), (ended(2, 0, code=0), TRAINING), (STOPPED, TRAINING)],
        "worker/2",
        "worker/2 on gpu-03 finished while the others still needed it, says worker/0 on gpu-01",
    ),
    (
        "lost, and the others say so",
        [(ended(0, 0, code=1), SOCKET_CLOSED), (ended(2, 90, lost="its host cannot be reached"), TRAINING)],
        "worker/2",
        "worker/2 on gpu-03 is lost after 41 s: its host cannot be reached",
    ),
    (
        "the program differs",
        [(ended(1, 0, code=1), SHAPES), (ended(0, 0.2, code=1), SHAPES)],
        "worker/1",
        "both tasks exited with 1 after 41 s: InvalidArgumentError: Shape mismatch in the…",
    ),
    (
        "a shell's exit status",
        [(ended(2, 0, code=137), TRAINING)],
        "worker/2",
        "worker/2 on gpu-03 exited with 137 after 41 s (128 + 9: killed by SIGKILL)",
    ),
    (
        "a child was killed for want of memory, and its parent waited for it",
        [(ended(2, 0, code=1, oom_kills=1), RAISED)],
        "worker/2",
        (
            "worker/2 on gpu-03 ran out of memory after 41 s: the kernel killed a process of it, "
            "and it exited with 1: ValueError: a bug of the user"
        ),
    ),
    (
        "the machine was restarted, and the others say that it is gone",
        [
            (ended(0, 0, code=1), SOCKET_CLOSED),
            (
                ended(2, 90, lost="the machine was restarted at 14:02", loss=Loss.RESTARTED),
                TRAINING,
            ),
        ],
        "worker/2",
        "gpu-03: the machine was restarted at 14:02, and worker/2 is lost with it",
    ),
    (
        "a host that stays silent, given up when the others had failed of it",
        [
            (ended(0, 0, code=1), UNHEALTHY),
            (ended(2, 60, lost="the host stopped answering", loss=Loss.UNREACHABLE, stopped=True), TRAINING),
            (STOPPED, TRAINING),
        ],
        "worker/2",
        "gpu-03: the host stopped answering, and worker/2 is lost with it",
    ),
    (
        "a task that others waited for at the start",
        [(ended(0, 0, code=1), BARRIER), (ended(1, 3, signal=9, stopped=True), TRAINING)],
        "worker/1",
        "worker/1 on gpu-02 was not ready in time, says worker/0 on gpu-01",
    ),
    (
        "a task that something started again alone",
        [(ended(0, 0, code=1), INCARNATION), (ended(1, 3, signal=9, stopped=True), TRAINING)],
        "worker/1",
        "worker/1 on gpu-02 was started again alone, says worker/0 on gpu-01",
    ),
    (
        "the first task was killed",
        [(ended(1, -0.2, code=1), LEADER_KILLED), (ended(0, 0, signal=9), TRAINING)],
        "worker/0",
        "worker/0 on gpu-01 was killed by SIGKILL after 41 s",
    ),
    ("nobody", [(STOPPED, TRAINING), (ended(0, 0, code=0), TRAINING)], "", "no task failed by itself"),
    ("nothing", [], "", "no task failed by itself"),
]


@pytest.mark.parametrize(("story", "exits", "task", "cause"), STORIES, ids=[story for story, *_ in STORIES])
def test_the_first_cause_is_named(
    story: str, exits: list[tuple[TaskExited, tuple[str, ...]]], task: str, cause: str
) -> None:
    del story
    tails = {one.task: lines for one, lines in exits}
    verdict = judge([one for one, _ in exits], lambda name, _attempt: Statement(tails[name]))
    assert verdict.task == task
    assert verdict.cause.startswith(cause[:-1]) if cause.endswith("…") else verdict.cause == cause
    assert verdict.last_lines == (lastwords.excerpt(tails[task]) if task else ())


def test_only_the_last_attempt_counts() -> None:
    first = TaskExited("worker/0", "gpu-01", "1", 3, None, "", 5.0, 10.0, stopped=False)
    again = TaskExited("worker/1", "gpu-02", "2", 4, None, "", 5.0, 99.0, stopped=False)
    assert judge([first, again], lambda _task, attempt: Statement((attempt,))).last_lines == ("2",)


KINDS: list[tuple[TaskExited, tuple[str, ...], FailureKind]] = [
    (ended(2, 0, signal=9), RAISED, FailureKind.SIGNAL),
    (ended(2, 0, signal=9, oom_kills=1), TRAINING, FailureKind.OUT_OF_MEMORY),
    (ended(2, 0, code=137), TRAINING, FailureKind.SIGNAL),
    (ended(2, 0, code=3), TRAINING, FailureKind.EXIT),
    (ended(2, 0, code=1), RAISED, FailureKind.EXCEPTION),
    (ended(2, 0, code=1), MODULE, FailureKind.EXCEPTION),
    (ended(2, 0, code=1), tail("array_memory"), FailureKind.OUT_OF_MEMORY),
    (ended(2, 0, code=1), OOM, FailureKind.OUT_OF_MEMORY),
    (ended(2, 0, code=1), tail("resources"), FailureKind.RESOURCES),
    (ended(2, 0, code=1), PORT, FailureKind.PORT),
    (ended(2, 0, code=1), NAN, FailureKind.NAN),
    (ended(2, 0, code=1), tail("nan_graph"), FailureKind.NAN),
    (ended(2, 0, code=1), ("Batch 7: Invalid loss, terminating training",), FailureKind.NAN),
    (ended(2, 0, code=1), SHAPES, FailureKind.MISMATCH),
    (ended(2, 0, code=1), GROUP, FailureKind.MISMATCH),
    (ended(2, 0, code=1), SOCKET_CLOSED, FailureKind.PEER),
    (ended(2, 0, signal=6), UNHEALTHY, FailureKind.PEER),
    (ended(2, 0, code=1), LEADER_KILLED, FailureKind.PEER),
    (ended(2, 0, code=1), INCARNATION, FailureKind.INCARNATION),
    (ended(2, 0, code=1), BARRIER, FailureKind.TIMEOUT),
    (ended(2, 0, code=1), NO_LEADER, FailureKind.TIMEOUT),
    (ended(2, 0, code=1), ("OSError: [Errno 28] No space left on device",), FailureKind.DISK),
    (ended(2, 0, lost="its supervisor was killed by signal 9"), TRAINING, FailureKind.LOST),
    (ended(2, 0, lost="its supervisor was killed", oom_kills=1), TRAINING, FailureKind.OUT_OF_MEMORY),
    (ended(2, 0, lost="x", loss=Loss.RESTARTED, oom_kills=1), TRAINING, FailureKind.REBOOTED),
    (ended(2, 0, lost="x", loss=Loss.UNREACHABLE), TRAINING, FailureKind.HOST_LOST),
    (ended(2, 0, lost="x", loss=Loss.UNSTARTED), TRAINING, FailureKind.START),
]


@pytest.mark.parametrize(("exited", "lines", "kind"), KINDS)
def test_every_cause_is_of_a_kind(exited: TaskExited, lines: tuple[str, ...], kind: FailureKind) -> None:
    assert judge([exited], lambda _task, _attempt: Statement(lines)).kind is kind


def test_the_last_traceback_is_shown_whole_and_a_very_long_one_without_its_middle() -> None:
    frame = ('  File "train.py", line 7, in step', "    loss = model(x)")
    chain = ("", "During handling of the above exception, another exception occurred:", "")
    first = ("Traceback (most recent call last):", *frame, "KeyError: 'x'")
    second = ("Traceback (most recent call last):", *frame * 6, "ValueError: no x")
    log = ("Epoch 1/3",) * 100 + first + chain + second
    shown = (*first, *chain, *second)
    assert lastwords.excerpt(log)[-len(shown) :] == shown
    noise = ("W0000 00:00 Unable to destroy server_ object",) * 3
    long = ("Traceback (most recent call last):", *frame * 60, "ValueError: no x", *noise)
    cut = lastwords.excerpt(log + long)
    assert len(cut) == 41
    assert cut[0] == long[0]
    assert "[85 lines are left out]" in cut
    assert cut[-4:] == long[-4:]
    handled = (*first, *("Epoch 2/3",) * 100)
    assert lastwords.excerpt(handled) == ("Epoch 2/3",) * 20


HINTS: list[tuple[TaskExited, tuple[str, ...], str]] = [
    (ended(2, 0, signal=9), OOM, "`dmesg -T | grep -i oom` on gpu-03"),
    (ended(2, 0, code=137), TRAINING, "out-of-memory killer"),
    (ended(2, 0, signal=4), TRAINING, "instruction"),
    (ended(2, 0, signal=30), TRAINING, ""),
    (ended(2, 0, code=127), ("sh: 1: foo: not found",), "PATH on gpu-03: a command was not found"),
    (ended(2, 0, code=1), PORT, "`orchestrate preflight` names who holds its port"),
    (ended(2, 0, code=1), SHAPES, "equal on all tasks"),
    (ended(2, 0, code=1), GROUP, "the tasks disagree about the cluster"),
    (ended(2, 0, code=1), KERAS_3, "remove `repair_keras = false`"),
    (ended(2, 0, code=1), MODULE, "install it for the `python` of that host"),
    (
        ended(2, 0, code=1),
        ("ModuleNotFoundError: No module named 'sklearn.datasets'",),
        "add scikit-learn to `packages`",
    ),
    (ended(2, 0, code=1), ("ModuleNotFoundError: No module named 'PIL'",), "add pillow to `packages`"),
    (
        ended(2, 0, code=1),
        ("ModuleNotFoundError: No module named 'yamlish'",),
        "add its package to `packages`",
    ),
    (
        ended(2, 0, code=1),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'outputs/log.csv'",),
        "an empty folder is not sent",
    ),
    (
        ended(2, 0, code=2),
        ("usage: train.py [-h]", "train.py: error: unrecognized arguments: --dry-run"),
        "orchestrate's own before it",
    ),
    (
        ended(2, 0, code=1),
        ("Error: TypeError: Cannot convert 3.0 to EagerTensor of dtype int64", "Execution halted"),
        "`3L` in R",
    ),
    (ended(2, 0, code=1), OOM, "a smaller batch, or a machine with more memory"),
    (ended(2, 0, code=1), RAISED, ""),
    (ended(2, 0, code=3), TRAINING, ""),
]


@pytest.mark.parametrize(("exited", "lines", "words"), HINTS)
def test_known_ends_come_with_advice(exited: TaskExited, lines: tuple[str, ...], words: str) -> None:
    hint = judge([exited], lambda _task, _attempt: Statement(lines)).hint
    assert words in hint if words else not hint


# What a program says in words that TensorFlow uses, too, is its own.
OWN_WORDS = [
    "KeyError: 'TF_CONFIG_EXTRA'",
    "ValueError: unknown incarnation of the model zoo",
    "RuntimeError: DeadlineExceededError from the feature store",
    "ValueError: column price had NaN values",
    "redis.exceptions.ConnectionError: Connection refused",
    "app.CancelledError: the order",
]


@pytest.mark.parametrize("line", OWN_WORDS)
def test_a_rule_asks_for_more_than_words(line: str) -> None:
    name, _, message = line.partition(": ")
    own = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>', line)
    for heard in (Statement(own), Statement((), Raised(name, message))):
        verdict = judge([ended(0, 0, code=1), ended(2, 9, code=1)], hear(w0=heard, w2=Statement(TRAINING)))
        assert (verdict.task, verdict.kind, verdict.hint) == ("worker/0", FailureKind.EXCEPTION, "")
    assert not lastwords.blames_peer(own)


_ADVERSE = (
    *(
        " ",
        "x",
        "a.",
        "[",
        "(",
        "_",
        "1",
        "| ",
        "\x1b[",
        "::",
        "1/2 ",
        "a/b/",
        "Error in ",
        "Error: ",
        "PerReplica",
    ),
    *("{{node ", "node x}} ", 'File "', "/job:worker/task:1", "python: ", "x: error: ", "-packages/", "sh: "),
    *(
        " name:",
        "2026-01-01 ",
        "Tensor ",
        "shape ",
        "got ",
        "not ",
        "loss ",
        "Failed to ",
        "unsupported type",
    ),
)


def patterns() -> Iterator[tuple[str, Callable[[str], object]]]:
    """Every pattern that a task's words are read with, in the way in which it is used."""
    for module in (lastwords, rules, statement, tracebacks):
        text = inspect.getsource(module)
        for name, pattern in vars(module).items():
            if isinstance(pattern, re.Pattern):
                uses = set(re.findall(rf"\b{name}\.(\w+)", text))
                for use in {"match" if use.endswith("match") else "search" for use in uses}:
                    yield f"{module.__name__}.{name}.{use}", getattr(pattern, use)
    for rule in rules.table():
        yield rule.pattern.pattern, rule.pattern.search
        if rule.library:
            yield rule.library.pattern, rule.library.search


def test_no_pattern_takes_more_than_twice_as_long_for_a_line_that_is_twice_as_long() -> None:
    def seconds(read: Callable[[str], object], line: str) -> float:
        began = time.process_time()
        read(line)
        return time.process_time() - began

    slow = [
        (name, unit)
        for name, read in patterns()
        for unit in _ADVERSE
        if seconds(read, (unit * 4000)[:4000]) > 0.004
        and min(seconds(read, (unit * 8000)[:8000]) for _ in range(3))
        > 3 * min(seconds(read, (unit * 4000)[:4000]) for _ in range(3))
    ]
    assert slow == []


@pytest.mark.parametrize("line", [" " * 16_000, "Error in " * 10_000])
def test_a_long_line_is_cut_before_it_is_read(line: str) -> None:
    heard = Statement((*RAISED, line, "ValueError: " + line))
    assert max(map(len, heard.lines)) <= LONGEST_LINE
    assert len(judge([ended(2, 0, code=1)], hear(w2=heard)).cause) < 400


EXCEPTIONS = [
    (RAISED, "ValueError: a bug of the user"),
    (("json.decoder.JSONDecodeError: Expecting value",), "json.decoder.JSONDecodeError: Expecting value"),
    (("KeyboardInterrupt",), "KeyboardInterrupt"),
    (("SystemExit: 3",), "SystemExit: 3"),
    (SOCKET_CLOSED, "UnavailableError: Socket closed"),
    (SOCKET_CLOSED_CUT, "Socket closed"),
    (PORT, "UnknownError: Could not start gRPC server"),
    (
        NAN,
        (
            'InvalidArgumentError: !!! Detected Infinity or NaN in output 0 of eagerly-executing op "Log" '
            "(# of outputs: 1) !!!"
        ),
    ),
    (tail("nan_graph"), "InvalidArgumentError: loss is bad : Tensor had NaN values"),
    (("ValueError: " + "x" * 300,), "ValueError: " + "x" * 227 + "…"),
    (("loss: 0.5", "the ErrorRate: 3", "Error handling: on"), ""),
    ((), ""),
]


@pytest.mark.parametrize(("lines", "said"), EXCEPTIONS)
def test_an_exception_is_one_line(lines: tuple[str, ...], said: str) -> None:
    assert lastwords.exception(lines) == said


def test_a_peer_named_in_an_earlier_exception_is_history() -> None:
    assert not lastwords.blames_peer((*SOCKET_CLOSED, "Traceback", "ValueError: no checkpoint to go on from"))


@pytest.mark.parametrize(
    ("lines", "task"), [(SOCKET_CLOSED, "worker/2"), (UNHEALTHY, "worker/2"), (RAISED, ""), (GROUP, "")]
)
def test_the_accused_is_found(lines: tuple[str, ...], task: str) -> None:
    assert Statement(lines).accused == task


def hear(**said: Statement) -> Hear:
    return lambda task, _attempt: said[task.replace("worker/", "w")]


def report(**data: Any) -> Raised:
    return Raised.parse(data)


def test_what_a_task_reports_is_the_verdict_whatever_its_log_says() -> None:
    told = report(
        type="Exception",
        message="record 17 has no images",
        file="/home/train/orchestrate/runs/x/work/train.py",
        line=6,
        chain=[{"type": "KeyError", "message": "'images'", "file": "/m/data.py", "line": 4, "how": "cause"}],
    )
    verdict = judge([ended(2, 0, code=1)], hear(w2=Statement(TRAINING, told)))
    assert verdict.cause == "worker/2 on gpu-03 exited with 1 after 41 s: Exception: record 17 has no images"
    assert verdict.why == "raised at train.py, line 6, because of KeyError: 'images' (/m/data.py, line 4)"
    assert verdict.kind is FailureKind.EXCEPTION


def test_the_message_of_sys_exit_is_the_verdict() -> None:
    told = report(type="SystemExit", message="usage: train.py DIR")
    verdict = judge([ended(2, 0, code=1)], hear(w2=Statement((), told)))
    assert verdict.cause == "worker/2 on gpu-03 exited with 1 after 41 s: usage: train.py DIR"
    assert (verdict.kind, verdict.why) == (FailureKind.EXIT, "")


def test_an_error_of_worker_entry_comes_with_its_own_advice_and_that_is_not_ours() -> None:
    told = report(message="the data set mnist is not on this machine", hint="`worker_entry --download`")
    verdict = judge([ended(2, 0, code=1)], hear(w2=Statement(RAISED, told)))
    assert verdict.cause.endswith("exited with 1 after 41 s: the data set mnist is not on this machine")
    assert verdict.why == "worker/2 advises: `worker_entry --download`"
    assert verdict.hint == ""


def test_a_report_about_a_peer_is_a_consequence() -> None:
    told = report(
        type="UnavailableError", message="Graph execution error:\n\nDetected at node x\nSocket closed"
    )
    said = hear(w0=Statement((), told), w2=Statement(TRAINING))
    verdict = judge([ended(0, 0, code=1), ended(2, 0.5, signal=9)], said)
    assert verdict.task == "worker/2"


SILENT = [
    ([(3, None), (3, None)], "both tasks exited with 3 after 41 s"),
    ([(None, 11), (None, 11)], "both tasks were killed by SIGSEGV after 41 s"),
    ([(3, None), (4, None)], "worker/0 on gpu-01 exited with 3 after 41 s"),
    ([(3, None), (0, None)], "worker/0 on gpu-01 exited with 3 after 41 s"),
]


@pytest.mark.parametrize(("ways", "cause"), SILENT)
def test_equal_ends_of_all_tasks_name_all(ways: list[tuple[int | None, int | None]], cause: str) -> None:
    exits = [ended(n, n / 9, code=code, signal=signal) for n, (code, signal) in enumerate(ways)]
    assert judge(exits, lambda _task, _attempt: Statement(())).cause == cause


ALIKE = [
    ((0, 1, 2), 3, "all 3 tasks exited with 1 after 41 s: ValueError: port 4 is bad"),
    ((0, 1), 3, "worker/[0-1] (2 of 3 tasks) exited with 1 after 41 s: ValueError: port 4 is bad"),
    ((1,), 3, "worker/1 on gpu-02 exited with 1 after 41 s: ValueError: port 4 is bad"),
]


@pytest.mark.parametrize(("bad", "total", "cause"), ALIKE)
def test_tasks_that_failed_alike_are_named_together(bad: tuple[int, ...], total: int, cause: str) -> None:
    exits = [
        ended(n, n / 9, code=1) if n in bad else ended(n, 2, signal=15, stopped=True) for n in range(total)
    ]
    said = {
        f"w{n}": Statement((f"ValueError: port {4 + n - bad[0]} is bad",) if n in bad else TRAINING)
        for n in range(total)
    }
    assert judge(exits, hear(**said)).cause == cause


def test_a_task_that_finished_too_early_comes_with_what_the_other_one_did_alone() -> None:
    told = report(
        type="tensorflow.python.framework.errors_impl.UnavailableError",
        message="Collective ops is aborted by: Socket closed\n"
        "Additional GRPC error information from remote target /job:worker/replica:0/task:1",
        file="/home/train/orchestrate/runs/x/work/train.py",
        line=8,
    )
    said = hear(w0=Statement((), told), w1=Statement(TRAINING))
    verdict = judge([ended(1, 0, code=0), ended(0, 9, code=1)], said)
    assert verdict.task == "worker/1"
    assert verdict.why == "worker/0 waited for it at train.py, line 8"
    assert "all of them call `model.save`" in verdict.hint


@pytest.mark.parametrize(("attempt", "advised"), [("1", False), ("2", True)])
def test_tasks_that_differ_after_a_restart_may_lack_a_backup(attempt: str, advised: bool) -> None:
    exited = TaskExited("worker/2", "gpu-03", attempt, 1, None, "", 5.0, 10.0, stopped=False)
    hint = judge([exited], hear(w2=Statement(SHAPES))).hint
    assert "make model, batch size, data and steps_per_epoch equal" in hint
    assert ("`backup` under [job]" in hint) is advised


HOSTILE: list[dict[str, Any]] = [
    {"type": 7, "message": ["x"], "line": "12", "file": None, "chain": "no"},
    {"message": "x" * 10**6, "chain": [{"message": "y"}] * 10**4},
    {"type": "A\x1b]0;owned\x07", "message": "\x1b[2Jgone\r\x00", "file": "\u202e.py", "line": 10**40},
    {"chain": [None, 3, {"chain": [{"chain": [{}]}]}]},
]


@pytest.mark.parametrize("data", HOSTILE)
def test_a_report_is_input_from_a_stranger(data: dict[str, Any]) -> None:
    told = report(**data)
    verdict = judge([ended(2, 0, code=1)], hear(w2=Statement((), told)))
    assert len(verdict.cause + verdict.why + verdict.hint) < 2000
    assert (verdict.cause + verdict.why).isprintable()
    assert len(told.chain) <= 6


VERBS = frozenset(
    re.findall(
        r"\w+",
        "add build call check choose compare configure convert correct free give install launch leave lower"
        " make prepare put read remove rewrite run set start use write",
    )
)


@pytest.mark.parametrize("rule", table(), ids=[rule.pattern.pattern[:30] for rule in table()])
def test_advice_begins_with_a_command_or_a_verb(rule: Rule) -> None:
    assert not rule.advice or rule.advice.startswith("`") or rule.advice.split(" ")[0] in VERBS


CRASHED = (
    "step 3",
    "2026-11-22 10:18:43.624145: F tensorflow/core/framework/tensor.cc:844] Check failed: IsAligned()",
    "Fatal Python error: Aborted",
    *(f'  File "/usr/lib/python3.11/deep.py", line {n} in f' for n in range(200)),
)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (CRASHED, "tensorflow/core/framework/tensor.cc:844] Check failed: IsAligned()"),
        (
            ("F1122 10:18:43.624145 140346505728064 train.py:3] 7 words, the model wants 9", *CRASHED[2:]),
            "train.py:3] 7 words, the model wants 9",
        ),
        (("free(): invalid pointer",), "free(): invalid pointer"),
        (
            ("terminate called after throwing an instance of 'std::length_error'", "  what():  too long"),
            "terminate called after throwing an instance of 'std::length_error': too long",
        ),
    ],
    ids=["TensorFlow", "absl", "the C library", "C++"],
)
def test_native_code_that_gave_up_says_why(lines: tuple[str, ...], said: str) -> None:
    verdict = judge([ended(2, 0, signal=6)], hear(w2=Statement(lines)))
    assert verdict.cause == f"worker/2 on gpu-03 was killed by SIGABRT after 41 s: {said}"
    reason = said.rpartition(": ")[2]
    assert any(reason in line for line in verdict.last_lines)
    assert len(verdict.last_lines) <= 42


def test_what_a_group_holds_is_said() -> None:
    part = {
        "type": "OSError",
        "message": "shard 0 is unreadable",
        "file": "train.py",
        "line": 4,
        "how": "part",
    }
    told = report(
        type="ExceptionGroup", message="a group", file="train.py", line=6, chain=[part], note="of 3"
    )
    why = Statement((), told).why
    assert (
        why == "raised at train.py, line 6; it holds OSError: shard 0 is unreadable (train.py, line 4); of 3"
    )
