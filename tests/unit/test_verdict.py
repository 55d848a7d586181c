"""The first cause of a failure, and the words of it, as TensorFlow, Python and R print them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.diagnosis import lastwords
from orchestrator.diagnosis.statement import Raised, Statement
from orchestrator.diagnosis.tracebacks import LONGEST_LINE
from orchestrator.diagnosis.verdict import Hear, Verdict, judge, of_hang
from orchestrator.events import FailureKind, Loss, TaskExited

TAILS = Path(__file__).parent / "tails"  # what TensorFlow 2.21 printed; the task to blame is worker/2


def tail(name: str) -> tuple[str, ...]:
    return tuple((TAILS / f"{name}.txt").read_text().splitlines())


RAISED = tail("raised")
SOCKET_CLOSED = tail("socket_closed")
UNHEALTHY = tail("unhealthy")
SHAPES = tail("shapes")
GROUP = tail("group")
BARRIER = tail("barrier")  # worker/0 says that worker/1 never came
NO_LEADER = tail("barrier_no_leader")  # worker/1 of the same, when worker/0 never came
INCARNATION = tail("incarnation")  # worker/0 says that worker/1 came back
LEADER_KILLED = tail("leader_killed")  # worker/1, when worker/0 was killed
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
HUNG = ended(2, 3, signal=9, stopped=True)
PEER = (ended(0, 0, code=1), SOCKET_CLOSED)

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
    (
        "an exception whose peers went first",
        [PEER, (ended(2, 3, code=1), RAISED)],
        "worker/2",
        "worker/2 on gpu-03 exited with 1 after 41 s: ValueError: a bug of the user",
    ),
    (
        "an exception that hung on its way down",
        [PEER, (HUNG, RAISED), (STOPPED, KEYBOARD)],
        "worker/2",
        "worker/2 on gpu-03 was stopped, by SIGKILL after 41 s",
    ),
    (
        "frozen",
        [(ended(0, 0, code=1), UNHEALTHY), (HUNG, TRAINING), (STOPPED, TRAINING)],
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
        "the machine was restarted, and the others say that it is gone",
        [PEER, (ended(2, 90, lost="the machine was restarted at 14:02", loss=Loss.RESTARTED), TRAINING)],
        "worker/2",
        "gpu-03: the machine was restarted at 14:02, and worker/2 is lost with it",
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


@pytest.mark.parametrize(
    ("exits", "task", "cause"), [story[1:] for story in STORIES], ids=[story[0] for story in STORIES]
)
def test_the_first_cause_is_named(
    exits: list[tuple[TaskExited, tuple[str, ...]]], task: str, cause: str
) -> None:
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
    (ended(2, 0, code=1), tail("resources"), FailureKind.RESOURCES),
    (ended(2, 0, code=1), SHAPES, FailureKind.MISMATCH),
    (ended(2, 0, code=1), GROUP, FailureKind.MISMATCH),
    (ended(2, 0, code=1), SOCKET_CLOSED, FailureKind.PEER),
    (ended(2, 0, code=1), INCARNATION, FailureKind.INCARNATION),
    (ended(2, 0, code=1), BARRIER, FailureKind.TIMEOUT),
    (ended(2, 0, code=1), NO_LEADER, FailureKind.TIMEOUT),
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


# What a program says in words that TensorFlow uses, too, is its own.
@pytest.mark.parametrize(
    "line",
    [
        "KeyError: 'TF_CONFIG_EXTRA'",
        "ValueError: unknown incarnation of the model zoo",
        "ValueError: column price had NaN values",
    ],
)
def test_a_rule_asks_for_more_than_words(line: str) -> None:
    name, _, message = line.partition(": ")
    own = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>', line)
    for heard in (Statement(own), Statement((), Raised(name, message))):
        verdict = judge([ended(0, 0, code=1), ended(2, 9, code=1)], hear(w0=heard, w2=Statement(TRAINING)))
        assert (verdict.task, verdict.kind, verdict.hint) == ("worker/0", FailureKind.EXCEPTION, "")
    assert not lastwords.blames_peer(own)


@pytest.mark.parametrize("line", [" " * 16_000, "Error in " * 10_000])
def test_a_long_line_is_cut_before_it_is_read(line: str) -> None:
    heard = Statement((*RAISED, line, "ValueError: " + line))
    assert max(map(len, heard.lines)) <= LONGEST_LINE
    assert heard.lines[-1].rstrip().endswith(line.strip()[-8:])  # where JAX says what failed
    assert len(judge([ended(2, 0, code=1)], hear(w2=heard)).cause) < 400


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
        chain=[{"type": "KeyError", "message": "'images'", "file": "/m/data.py", "line": 4}],
    )
    verdict = judge([ended(2, 0, code=1)], hear(w2=Statement(TRAINING, told)))
    assert verdict.cause == "worker/2 on gpu-03 exited with 1 after 41 s: Exception: record 17 has no images"
    assert verdict.why == "raised at train.py, line 6, after KeyError: 'images' (/m/data.py, line 4)"
    assert verdict.kind is FailureKind.EXCEPTION


IN_TENSORFLOW = """Graph execution error:

Detected at node EagerPyFunc defined at (most recent call last):
<stack traces unavailable>
KeyError: 20
Traceback (most recent call last):

  File "/e/lib/python3.11/site-packages/tensorflow/python/ops/script_ops.py", line 152, in _call
    ret = self._func(*args)

  File "/runs/x/work/train.py", line 4, in label
    return float(labels[int(n)])

KeyError: 20


\t [[{{node EagerPyFunc}}]]"""
IN_A_LOADER = """Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/e/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 309, in _worker_loop
    data = fetcher.fetch(index)
  File "/runs/x/work/data.py", line 7, in __getitem__
    raise ValueError("row 3 has no label")
ValueError: row 3 has no label
"""
IN_A_POOL = [
    {"type": "concurrent.futures.process._RemoteTraceback", "message": IN_A_LOADER.partition("\n")[2]}
]


@pytest.mark.parametrize(
    ("kind", "message", "chain", "said", "where"),
    [
        (
            "tensorflow.python.framework.errors_impl.UnknownError",
            IN_TENSORFLOW,
            [],
            "KeyError: 20",
            "train.py, line 4",
        ),
        ("ValueError", IN_A_LOADER, [], "ValueError: row 3 has no label", "data.py, line 7"),
        ("ValueError", "row 3 has no label", IN_A_POOL, "ValueError: row 3 has no label", "data.py, line 7"),
    ],
)
def test_an_exception_quoted_by_a_framework_is_the_one_that_is_named(
    kind: str, message: str, chain: list[dict[str, str]], said: str, where: str
) -> None:
    told = report(type=kind, message=message, file="train.py", line=99, chain=chain)
    verdict = judge([ended(2, 0, code=1)], hear(w2=Statement(TRAINING, told)))
    assert verdict.cause == f"worker/2 on gpu-03 exited with 1 after 41 s: {said}"
    assert verdict.why == f"raised at {where}"


HELD = {"type": "RuntimeError", "message": "no data", "file": "train.py", "line": 8, "held": "thread feed"}
OF_A_THREAD = (
    "Exception in thread feed:",
    "Traceback (most recent call last):",
    '  File "/runs/x/work/data.py", line 6, in feed',
    "ValueError: row 5 has no label",
)
OF_A_CHILD = ("Process SpawnProcess-1:", *OF_A_THREAD[1:])
ENDED_THREAD = "its thread feed ended with ValueError: row 5 has no label (data.py, line 6)"


def test_a_task_that_outlives_its_exception_is_the_cause() -> None:
    exits = [ended(task, 0, signal=15, stopped=True) for task in (1, 2)]
    verdict = judge(exits, hear(w1=Statement(TRAINING), w2=Statement((), report(**HELD))))
    assert (
        verdict.cause
        == "worker/2 on gpu-03 raised RuntimeError: no data, and thread feed kept it from ending"
    )
    assert (verdict.kind, verdict.why) == (FailureKind.EXCEPTION, "raised at train.py, line 8")
    assert "daemon" in verdict.hint


@pytest.mark.parametrize(
    ("odd", "lines", "cause"),
    [
        ("worker/2", OF_A_THREAD, f"no word for 9 s: worker/2 hangs; {ENDED_THREAD}"),
        ("", (*OF_A_THREAD, *TRAINING), f"worker/2 on gpu-03: {ENDED_THREAD}, and then no word for 9 s"),
        (
            "",
            OF_A_CHILD,
            f"worker/2 on gpu-03: {ENDED_THREAD}, and then no word for 9 s".replace(
                "thread feed", "process SpawnProcess-1"
            ),
        ),
        (
            "",
            RAISED,
            "worker/2 on gpu-03: it had raised ValueError: a bug of the user, and then no word for 9 s",
        ),
        ("worker/2", TRAINING, "no word for 9 s: worker/2 hangs"),
        ("", TRAINING, "no word for 9 s: no task stands out"),
    ],
)
def test_what_was_raised_before_a_hang_is_named(odd: str, lines: tuple[str, ...], cause: str) -> None:
    said = f"no word for 9 s: {f'{odd} hangs' if odd else 'no task stands out'}"
    exits = [ended(task, 0, signal=15, stopped=True) for task in (1, 2)]
    heard = hear(w1=Statement(TRAINING), w2=Statement(lines))
    verdict = of_hang(Verdict(FailureKind.HANG, odd, "gpu-03" if odd else "", said), exits, heard)
    assert verdict.cause == cause


def test_the_end_of_a_thread_is_told_with_what_it_led_to() -> None:
    lines = (
        *OF_A_THREAD,
        "Traceback (most recent call last):",
        '  File "/runs/x/work/train.py", line 9, in <module>',
        "_queue.Empty",
    )
    verdict = judge([ended(2, 0, code=1)], hear(w2=Statement(lines)))
    assert verdict.why == f"raised at train.py, line 9, after {ENDED_THREAD}"


def test_the_message_of_sys_exit_is_the_verdict() -> None:
    told = report(type="SystemExit", message="usage: train.py DIR")
    verdict = judge([ended(2, 0, code=1)], hear(w2=Statement((), told)))
    assert verdict.cause == "worker/2 on gpu-03 exited with 1 after 41 s: usage: train.py DIR"
    assert (verdict.kind, verdict.why) == (FailureKind.EXIT, "")


ALIKE = [
    ((0, 1, 2), "all 3 tasks exited with 1 after 41 s: ValueError: port 4 is bad"),
    ((0, 1), "worker/[0-1] (2 of 3 tasks) exited with 1 after 41 s: ValueError: port 4 is bad"),
]


@pytest.mark.parametrize(("bad", "cause"), ALIKE)
def test_tasks_that_failed_alike_are_named_together(bad: tuple[int, ...], cause: str) -> None:
    exits = [ended(n, n / 9, code=1) if n in bad else ended(n, 2, signal=15, stopped=True) for n in range(3)]
    said = {
        f"w{n}": Statement((f"ValueError: port {4 + n} is bad",) if n in bad else TRAINING) for n in range(3)
    }
    assert judge(exits, hear(**said)).cause == cause


@pytest.mark.parametrize(("attempt", "advised"), [("1", False), ("2", True)])
def test_tasks_that_differ_after_a_restart_may_lack_a_backup(attempt: str, advised: bool) -> None:
    exited = TaskExited("worker/2", "gpu-03", attempt, 1, None, "", 5.0, 10.0, stopped=False)
    hint = judge([exited], hear(w2=Statement(SHAPES))).hint
    assert "make model, batch size, data and steps_per_epoch equal" in hint
    assert ("`backup` under [job]" in hint) is advised


@pytest.mark.parametrize(
    "data",
    [
        {"message": "x" * 10**6, "chain": [{"message": "y"}] * 10**4},
        {"type": "A\x1b]0;owned\x07", "message": "\x1b[2Jgone\r\x00", "file": "\u202e.py", "line": 10**40},
        {"chain": [None, 3, {"chain": [{"chain": [{}]}]}]},
    ],
)
def test_a_report_is_input_from_a_stranger(data: dict[str, Any]) -> None:
    told = report(**data)
    verdict = judge([ended(2, 0, code=1)], hear(w2=Statement((), told)))
    assert len(verdict.cause + verdict.why + verdict.hint) < 2000
    assert (verdict.cause + verdict.why).isprintable()
    assert len(told.chain) <= 6


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
            ("terminate called after throwing an instance of 'std::length_error'", "  what():  too long"),
            "terminate called after throwing an instance of 'std::length_error': too long",
        ),
    ],
    ids=["TensorFlow", "C++"],
)
def test_native_code_that_gave_up_says_why(lines: tuple[str, ...], said: str) -> None:
    verdict = judge([ended(2, 0, signal=6)], hear(w2=Statement(lines)))
    assert verdict.cause == f"worker/2 on gpu-03 was killed by SIGABRT after 41 s: {said}"
    reason = said.rpartition(": ")[2]
    assert any(reason in line for line in verdict.last_lines)
    assert len(verdict.last_lines) <= 42


TRACEBACKS = Path(__file__).parent / "tracebacks"

# file -> (the exception in one line, where it was raised)
SAID = {
    "chained": ("Exception: record 17 has no images", "chained.py, line 5"),
    "during": ("zipfile.BadZipFile: File is not a zip file", "during.py, line 5"),
    "imports": ("SyntaxError: invalid syntax", "a_module_that_imports_badly.py, line 1"),
    "long": ("ValueError: Layer mismatch: layer 0: shape (32, 0)", "long.py, line 1"),
    "notes": ("ValueError: bad shard", "notes.py, line 2"),
    "own-3.8": ("Inner: of our own", "own.py, line 5"),
    "own-3.13": ("Outer.Inner: of our own", "own.py, line 5"),
    "stop": ("StopIteration", "stop.py, line 1"),
}
FILES = sorted(TRACEBACKS.glob("*.txt"))
TEARDOWN = ("W0000 00:00:1795272237.622300   13079 local_rendezvous.cc:412] Local rendezvous aborts",) * 4


def log(path: Path) -> tuple[str, ...]:
    """As the last lines of a log are read: without blank ones."""
    return tuple(line for line in path.read_text().split("\n") if line.strip())


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_traceback_is_read_as_python_prints_it(path: Path) -> None:
    exception, where = SAID.get(path.stem) or SAID[path.stem.rpartition("-")[0]]
    for lines in (log(path), (*TRAINING * 30, *log(path), *TEARDOWN)):
        read = Statement(lines)
        assert read.exception == exception
        assert read.why.replace("/home/train/", "") == f"raised at {where}"
    shown = lastwords.excerpt((*TRAINING * 30, *log(path), *TEARDOWN))
    assert len(shown) <= 42
    assert not any(line.startswith("W0000") for line in shown)
    name = Statement(log(path)).exception.partition(":")[0]
    assert any(name in line for line in shown)


def test_an_exception_that_the_program_survived_is_not_its_end() -> None:
    assert Statement((*log(TRACEBACKS / "stop-3.8.txt"), *TRAINING * 30)).exception == ""


@pytest.mark.parametrize(
    "aside", ["Exception in thread Thread-1 (work):", "Exception ignored in: <function Pool.__del__ at 0x7f>"]
)
def test_an_exception_that_ends_no_program_yields_to_one_that_does(aside: str) -> None:
    other = ("Traceback (most recent call last):", '  File "a.py", line 1, in work', "OSError: aside")
    lines = (*log(TRACEBACKS / "stop-3.8.txt"), aside, *other)
    assert Statement(lines).exception == "StopIteration"
    assert Statement((aside, *other)).exception == "OSError: aside"


COMPLAINTS = [
    (
        ("Error in py_call_impl(callable, dots$args, dots$keywords) : ", "  evaluation error", "Calls: fit"),
        "Error in py_call_impl(callable, dots$args, dots$keywords): evaluation error",
    ),
    (("bash: line 1: foo: command not found",), "bash: line 1: foo: command not found"),
    ((), ""),
]


@pytest.mark.parametrize(("lines", "said"), COMPLAINTS)
def test_programs_without_a_traceback_are_quoted_too(lines: tuple[str, ...], said: str) -> None:
    assert lastwords.complaint((*TRAINING, *lines)) == said
