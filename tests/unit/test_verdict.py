from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator import lastwords
from orchestrator.events import Kind, Loss, TaskExited
from orchestrator.verdict import judge

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
        "killed, and the peers' clocks are ahead of its own",
        [(ended(0, -0.3, code=1), SOCKET_CLOSED), (ended(2, 0, signal=9), TRAINING)],
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
        "a peer with long last words",
        [(ended(0, -0.3, code=1), SOCKET_CLOSED_CUT), (ended(2, 0, signal=11), TRAINING)],
        "worker/2",
        "worker/2 on gpu-03 was killed by SIGSEGV after 41 s",
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
        "two exceptions: the first counts",
        [(ended(2, 3, code=1), RAISED), (ended(1, 1, code=1), MODULE)],
        "worker/1",
        "worker/1 on gpu-02 exited with 1 after 41 s: ModuleNotFoundError: No module named 'wandb'",
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
        "all blame each other",
        [(ended(2, 0.2, code=1), UNHEALTHY), (ended(0, 0, code=1), SOCKET_CLOSED)],
        "worker/0",
        "worker/0 on gpu-01 exited with 1 after 41 s: UnavailableError: Socket closed",
    ),
    (
        "a native abort because of a peer",
        [(ended(0, 0, signal=6), UNHEALTHY), (ended(2, 1, code=3), TRAINING)],
        "worker/2",
        "worker/2 on gpu-03 exited with 3 after 41 s",
    ),
    (
        "lost, and the others say so",
        [(ended(0, 0, code=1), SOCKET_CLOSED), (ended(2, 90, lost="its host cannot be reached"), TRAINING)],
        "worker/2",
        "worker/2 on gpu-03 is lost after 41 s: its host cannot be reached",
    ),
    (
        "a failure before a lost one",
        [(ended(2, 0, lost="its host cannot be reached"), TRAINING), (ended(0, 5, code=3), TRAINING)],
        "worker/0",
        "worker/0 on gpu-01 exited with 3 after 41 s",
    ),
    (
        "the program differs",
        [(ended(1, 0, code=1), SHAPES), (ended(0, 0.2, code=1), SHAPES)],
        "worker/1",
        "worker/1 on gpu-02 exited with 1 after 41 s: InvalidArgumentError: Shape mismatch in the…",
    ),
    (
        "a shell's exit status",
        [(ended(2, 0, code=137), TRAINING)],
        "worker/2",
        "worker/2 on gpu-03 exited with 137 after 41 s (a shell's word for SIGKILL)",
    ),
    (
        "out of memory, of which the peers failed first",
        [
            (ended(0, -0.3, code=1), SOCKET_CLOSED),
            (ended(2, 0, signal=9, oom_kills=1, oom_limit=2_000_000_000), TRAINING),
        ],
        "worker/2",
        "worker/2 on gpu-03 ran out of memory after 41 s: the kernel killed it (limit 2.0 GB)",
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
        "a shell whose command was killed for want of memory",
        [(ended(2, 0, code=137, oom_kills=1), TRAINING)],
        "worker/2",
        "worker/2 on gpu-03 ran out of memory after 41 s: the kernel killed it",
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
        "the first task was waited for",
        [(ended(1, 0, code=1), NO_LEADER), (ended(0, 3, signal=9, stopped=True), TRAINING)],
        "worker/0",
        "worker/0 on gpu-01 was not ready in time, says worker/1 on gpu-02",
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
    verdict = judge([one for one, _ in exits], lambda name, _attempt: tails[name])
    assert verdict.task == task
    assert verdict.cause.startswith(cause[:-1]) if cause.endswith("…") else verdict.cause == cause
    assert verdict.last_lines == (lastwords.excerpt(tails[task]) if task else ())


def test_only_the_last_attempt_counts() -> None:
    first = TaskExited("worker/0", "gpu-01", "1", 3, None, "", 5.0, 10.0, stopped=False)
    again = TaskExited("worker/1", "gpu-02", "2", 4, None, "", 5.0, 99.0, stopped=False)
    assert judge([first, again], lambda _task, attempt: (attempt,)).last_lines == ("2",)


KINDS: list[tuple[TaskExited, tuple[str, ...], Kind]] = [
    (ended(2, 0, signal=9), RAISED, Kind.SIGNAL),
    (ended(2, 0, signal=9, oom_kills=1), TRAINING, Kind.OUT_OF_MEMORY),
    (ended(2, 0, code=137), TRAINING, Kind.SIGNAL),
    (ended(2, 0, code=3), TRAINING, Kind.EXIT),
    (ended(2, 0, code=1), RAISED, Kind.EXCEPTION),
    (ended(2, 0, code=1), MODULE, Kind.EXCEPTION),
    (ended(2, 0, code=1), tail("array_memory"), Kind.OUT_OF_MEMORY),
    (ended(2, 0, code=1), OOM, Kind.OUT_OF_MEMORY),
    (ended(2, 0, code=1), tail("resources"), Kind.RESOURCES),
    (ended(2, 0, code=1), PORT, Kind.PORT),
    (ended(2, 0, code=1), NAN, Kind.NAN),
    (ended(2, 0, code=1), tail("nan_graph"), Kind.NAN),
    (ended(2, 0, code=1), ("Batch 7: Invalid loss, terminating training",), Kind.NAN),
    (ended(2, 0, code=1), SHAPES, Kind.MISMATCH),
    (ended(2, 0, code=1), GROUP, Kind.MISMATCH),
    (ended(2, 0, code=1), SOCKET_CLOSED, Kind.PEER),
    (ended(2, 0, signal=6), UNHEALTHY, Kind.PEER),
    (ended(2, 0, code=1), LEADER_KILLED, Kind.PEER),
    (ended(2, 0, code=1), INCARNATION, Kind.INCARNATION),
    (ended(2, 0, code=1), BARRIER, Kind.TIMEOUT),
    (ended(2, 0, code=1), NO_LEADER, Kind.TIMEOUT),
    (ended(2, 0, code=1), ("OSError: [Errno 28] No space left on device",), Kind.DISK),
    (ended(2, 0, lost="its supervisor was killed by signal 9"), TRAINING, Kind.LOST),
    (ended(2, 0, lost="its supervisor was killed", oom_kills=1), TRAINING, Kind.OUT_OF_MEMORY),
    (ended(2, 0, lost="x", loss=Loss.RESTARTED, oom_kills=1), TRAINING, Kind.REBOOTED),
    (ended(2, 0, lost="x", loss=Loss.UNREACHABLE), TRAINING, Kind.HOST_LOST),
    (ended(2, 0, lost="x", loss=Loss.UNSTARTED), TRAINING, Kind.START),
]


@pytest.mark.parametrize(("exited", "lines", "kind"), KINDS)
def test_every_cause_is_of_a_kind(exited: TaskExited, lines: tuple[str, ...], kind: Kind) -> None:
    assert judge([exited], lambda _task, _attempt: lines).kind is kind


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
    (ended(2, 0, signal=9), OOM, "dmesg -T | grep -i oom, on gpu-03"),
    (ended(2, 0, code=137), TRAINING, "out-of-memory killer"),
    (ended(2, 0, signal=4), TRAINING, "instruction"),
    (ended(2, 0, signal=30), TRAINING, ""),
    (ended(2, 0, code=127), ("sh: 1: foo: not found",), "PATH on gpu-03: a command was not found"),
    (ended(2, 0, code=1), PORT, "orchestrate preflight names the holder"),
    (ended(2, 0, code=1), SHAPES, "must be equal on all"),
    (ended(2, 0, code=1), GROUP, "the same TF_CONFIG cluster"),
    (ended(2, 0, code=1), KERAS_3, "install tf_keras and set TF_USE_LEGACY_KERAS=1"),
    (ended(2, 0, code=1), MODULE, "install it for the `python` of that host"),
    (ended(2, 0, code=1), OOM, "a smaller batch, or a machine with more memory"),
    (ended(2, 0, code=1), RAISED, ""),
    (ended(2, 0, code=3), TRAINING, ""),
]


@pytest.mark.parametrize(("exited", "lines", "words"), HINTS)
def test_known_ends_come_with_advice(exited: TaskExited, lines: tuple[str, ...], words: str) -> None:
    hint = judge([exited], lambda _task, _attempt: lines).hint
    assert words in hint if words else not hint


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
    assert lastwords.accused(lines) == task
