"""The root cause of failures as TensorFlow, Python, and R print them: examples and their verdicts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from orchestrator.diagnosis import lastwords, rules
from orchestrator.diagnosis.statement import Raised, Statement
from orchestrator.diagnosis.tracebacks import LONGEST_LINE
from orchestrator.diagnosis.verdict import StatementOf, Verdict, judge, of_hang
from orchestrator.events import FailureKind, Loss, TaskExited
from orchestrator.phases.attempt import Finished
from orchestrator.phases.keeper import divergence
from tests.golden import matches_golden

HERE = Path(__file__).parent
Lines: TypeAlias = tuple[str, ...]
Report: TypeAlias = dict[str, Any]
End: TypeAlias = tuple[TaskExited, Lines | Report]


def tail(name: str) -> Lines:
    """Return recorded output of TensorFlow 2.21."""
    return tuple((HERE / "tails" / f"{name}.txt").read_text().splitlines())


RAISED, SOCKET_CLOSED, SHAPES = tail("raised"), tail("socket_closed"), tail("shapes")
BARRIER = tail("barrier")  # worker/0 reports that worker/1 never joined
INCARNATION = tail("incarnation")  # worker/0 reports that worker/1 returned
GLOO = tail("gloo")  # of PyTorch 2.15: names an address, but no task
TRAINING = ("Epoch 1/3", " 3/5 [====>....] - ETA: 0s - loss: 2.3")
KEYBOARD = ('  File "train.py", line 2, in <module>', "KeyboardInterrupt")


def test_the_loaded_rules_need_no_installed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.open", lambda *_: pytest.fail("opened"))
    monkeypatch.setattr("io.open", lambda *_: pytest.fail("opened"))
    assert rules.table.__wrapped__()


def report(message: str = "", kind: str = "Exception", **more: Any) -> Report:
    return {"type": kind, "message": message, **more}


def end(task: int, at: float, said: Lines | Report = TRAINING, **how: Any) -> End:
    """Return the end of a task, with its last lines or the report of its own Python."""
    usual = {"code": None, "signal": None, "lost": "", "attempt": "1", "stopped": False}
    exited = TaskExited(f"worker/{task}", f"gpu-0{task + 1}", seconds=41.0, ended=at, **(usual | how))
    return exited, said


def own(name: str, *frames: str, thread: str = "") -> Lines:
    """Return a traceback of the program."""
    head = (f"Exception in thread {thread}:",) if thread else ()
    return (*head, "Traceback (most recent call last):", *(f"  File {one}, in f" for one in frames), name)


STOPPED = end(3, 4, signal=15, stopped=True)
HUNG: dict[str, Any] = {"signal": 9, "stopped": True}
PEER = end(0, 0, SOCKET_CLOSED, code=1)
FEED = own("ValueError: row 5 has no label", '"/runs/x/work/data.py", line 6', thread="feed")
CRASHED = (
    "step 3",
    "2026-11-22 10:18:43.624145: F tensorflow/core/framework/tensor.cc:844] Check failed: IsAligned()",
    "Fatal Python error: Aborted",
    *(f'  File "/usr/lib/python3.11/deep.py", line {n} in f' for n in range(200)),
)
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
IN_A_POOL = {
    "type": "concurrent.futures.process._RemoteTraceback", "message": IN_A_LOADER.partition("\n")[2]
}  # fmt: skip
UNKNOWN = "tensorflow.python.framework.errors_impl.UnknownError"
PLACE: dict[str, Any] = {"file": "/home/train/orchestrate/runs/x/work/train.py", "line": 6}
CAME_FROM = [{"type": "KeyError", "message": "'images'", "file": "/m/data.py", "line": 4}]
# A program's own message that resembles one of TensorFlow's is attributed to the program.
OWN_WORDS = (
    ("KeyError", "'TF_CONFIG_EXTRA'"),
    ("ValueError", "unknown incarnation of the model zoo"),
    ("ValueError", "column price had NaN values"),
)


def alike(*bad: int) -> list[End]:
    """Return three tasks, of which these failed with the same message but their own numbers."""
    ports = {n: (f"ValueError: port {4 + n} is bad",) for n in bad}
    return [end(n, n / 9, ports[n], code=1) if n in bad else end(n, 2, **HUNG) for n in range(3)]


STORIES: dict[str, list[End]] = {
    "killed": [end(2, 0, signal=9), end(0, 1.1, SOCKET_CLOSED, code=1), STOPPED],
    "out of memory, on a machine that its peers share": [
        end(0, -0.3, SOCKET_CLOSED, code=1, oom_kills=1),
        end(2, 0, signal=9, oom_kills=1),
    ],
    "out of memory in a process of its own, and its words are of the others": [
        end(2, 0, SOCKET_CLOSED, code=1, oom_kills=1),
        end(0, 0.2, SOCKET_CLOSED, code=1),
    ],
    "an exception whose peers went first": [PEER, end(2, 3, RAISED, code=1)],
    "an exception that hung on its way down": [
        PEER,
        end(2, 3, RAISED, **HUNG),
        end(3, 4, KEYBOARD, signal=15, stopped=True),
    ],
    "frozen": [end(0, 0, tail("unhealthy"), code=1), end(2, 3, **HUNG), STOPPED],
    "a task that was done before the others": [end(0, 2, SOCKET_CLOSED, code=1), end(2, 0, code=0), STOPPED],
    "the program differs": [end(1, 0, SHAPES, code=1), end(0, 0.2, SHAPES, code=1)],
    "the program differs after a restart": [end(2, 0, SHAPES, code=1, attempt="2")],
    "the machine was restarted, and the others say that it is gone": [
        PEER,
        end(2, 90, lost="the machine was restarted at 14:02", loss=Loss.RESTARTED),
    ],
    "a host that stays silent, and the others fail of it": [
        PEER,
        end(2, 90, lost="the host stopped answering", loss=Loss.UNREACHABLE, stopped=True),
    ],
    "a task that others waited for at the start": [end(0, 0, BARRIER, code=1), end(1, 3, **HUNG)],
    "a task that was done before the others, which PyTorch does not name": [
        end(0, 3, GLOO, code=1),
        end(1, 2, code=0),
        end(2, 3.1, GLOO, code=1),
        STOPPED,
    ],
    "a peer that PyTorch does not name": [end(0, 3, GLOO, code=1), end(2, 3.1, GLOO, code=1)],
    "one begins anew after a restart": [
        end(0, 2, code=0, attempt="2"),
        end(1, 3, GLOO, code=1, attempt="2"),
    ],
    "a task that JAX waited for, after the end of the other": [
        end(1, 3, tail("jax_shutdown"), signal=6),
        end(0, 3.1, tail("jax_shutdown"), signal=6),
    ],
    "a task that something started again alone": [end(0, 0, INCARNATION, code=1), end(1, 3, **HUNG)],
    "the first task was killed": [end(1, -0.2, tail("leader_killed"), code=1), end(0, 0, signal=9)],
    "nobody": [STOPPED, end(0, 0, code=0)],
    "only the last attempt counts": [end(0, 0, ("1",), code=3), end(1, 9, ("2",), code=4, attempt="2")],
    "all failed alike": alike(0, 1, 2),
    "two of three failed alike": alike(0, 1),
    # one task
    "a signal, whatever it had raised": [end(2, 0, RAISED, signal=9)],
    "a limit of processor time": [
        end(2, 0, signal=9, note="it used up its 3600 s of processor time (`ulimit -t`)")
    ],
    "a shell's exit status": [end(2, 0, code=137)],
    "an exit status": [end(2, 0, code=3)],
    "resources": [end(2, 0, tail("resources"), code=1)],
    "a group that differs": [end(2, 0, tail("group"), code=1)],
    "a peer that is not ours": [PEER],
    "a barrier without its leader": [end(2, 0, tail("barrier_no_leader"), code=1)],
    "lost": [end(2, 0, lost="its supervisor was killed by signal 9")],
    "lost by a kill for memory": [end(2, 0, lost="its supervisor was killed", oom_kills=1)],
    "restarted": [end(2, 0, lost="x", loss=Loss.RESTARTED, oom_kills=1)],
    "unreachable": [end(2, 0, lost="x", loss=Loss.UNREACHABLE)],
    "never started": [end(2, 0, lost="x", loss=Loss.UNSTARTED)],
    "native code of TensorFlow": [end(2, 0, CRASHED, signal=6)],
    "native code of C++": [
        end(2, 0, ("terminate called after throwing an instance of 'x'", "  what():  too long"), signal=6)
    ],
    "a thread that ended, and what it led to": [
        end(2, 0, (*FEED, *own("_queue.Empty", '"/runs/x/work/train.py", line 9')), code=1)
    ],
    # the report of its Python
    "a report": [end(2, 0, report("record 17 has no images", **PLACE, chain=CAME_FROM), code=1)],
    "sys.exit": [end(2, 0, report("usage: train.py DIR", "SystemExit"), code=1)],
    "quoted by TensorFlow": [end(2, 0, report(IN_TENSORFLOW, UNKNOWN, **PLACE), code=1)],
    "quoted by a loader of PyTorch": [end(2, 0, report(IN_A_LOADER, "ValueError", **PLACE), code=1)],
    "quoted by a pool": [
        end(2, 0, report("row 3 has no label", "ValueError", **PLACE, chain=[IN_A_POOL]), code=1)
    ],
    "a task that outlives its exception": [
        end(1, 0, signal=15, stopped=True),
        end(2, 0, report("no data", "RuntimeError", **PLACE, held="thread feed"), signal=15, stopped=True),
    ],
    **{
        f"{how}: {name}: {message}": [end(0, 0, said, code=1), end(2, 9, code=1)]
        for name, message in OWN_WORDS
        for how, said in (
            ("printed", own(f"{name}: {message}", '"train.py", line 3')),
            ("reported", report(message, name)),
        )
    },
}  # fmt: skip


def statement(said: Lines | Report) -> Statement:
    return Statement((), Raised.parse(said)) if isinstance(said, dict) else Statement(said)


def hear(ends: Sequence[End]) -> StatementOf:
    known = {(exited.task, exited.attempt): statement(said) for exited, said in ends}
    return lambda task, attempt: known[task, attempt]


def shown(name: str, verdict: Verdict) -> str:
    lines = verdict.last_lines
    assert len(lines) <= 42
    some = lines if len(lines) <= 5 else (*lines[:2], "...", *lines[-2:])
    rows = [f"{verdict.kind.value or 'none'}: {verdict.cause}", *(f"  | {line}" for line in some)]
    why, hint = verdict.why.replace("\n", " / "), verdict.hint
    rows += [f"  {head} {text}" for head, text in (("why:", why), ("try:", hint)) if text]
    return "\n".join([f"--- {name}: {verdict.cause_task or 'nobody'}", *rows, ""])


def test_the_root_cause_is_named() -> None:
    text = ""
    for name, ends in STORIES.items():
        verdict = judge([exited for exited, _ in ends], hear(ends))
        text += shown(name, verdict)
    matches_golden("verdict/causes.txt", text)
    assert judge([], hear([])).cause == "no task failed by itself"


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ({}, ""),
        ({1: "nan"}, "worker/1 on gpu-02: its last loss is nan"),
        ({0: "inf", 1: "nan", 3: "nan"}, "worker/[0-1]: the last loss is inf or nan"),  # 3 was stopped
    ],
)
def test_all_tasks_with_a_nan_loss_are_named(bad: dict[int, str], cause: str) -> None:
    ends = tuple(exited for exited, _ in (*(end(n, n, code=0) for n in range(3)), STOPPED))
    losses = {f"worker/{n}": loss for n, loss in bad.items()}
    assert divergence(Finished(ends, True, False, {}, (), None, losses)).cause == cause


SIGNALED = (
    *("Traceback (most recent call last):", '  File "/e/bin/torchrun", line 10, in <module>', "    main()"),
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15",
)
HANGS: dict[str, tuple[str, Lines]] = {
    "a thread of the one that hangs had ended": ("worker/2", FEED),
    "a thread of one had ended, and no task differs from the others": ("", (*FEED, *TRAINING)),
    "a process had ended": ("", ("Process SpawnProcess-1:", *FEED[1:])),
    "one had raised": ("", RAISED),
    "torchrun had raised when it was stopped": ("worker/2", SIGNALED),
    "one hangs": ("worker/2", TRAINING),
    "no task differs from the others": ("", TRAINING),
}


def test_an_exception_before_a_hang_is_named() -> None:
    text = ""
    for name, (odd, lines) in HANGS.items():
        cause = f"no output for 9 s: {f'{odd} hangs' if odd else 'no task differs from the others'}"
        ends = [end(1, 0, signal=15, stopped=True), end(2, 0, lines, signal=15, stopped=True)]
        hang = Verdict(FailureKind.HANG, odd, "gpu-03" if odd else "", cause)
        text += shown(name, of_hang(hang, [exited for exited, _ in ends], hear(ends)))
    matches_golden("verdict/hangs.txt", text)


@pytest.mark.parametrize(("code", "at_fault"), [("3", "worker/0"), ("-9", "worker/0"), ("1", "worker/1")])
def test_a_process_of_torchrun_that_exits_by_itself_is_the_root_cause(code: str, at_fault: str) -> None:
    """Its siblings, and the other host before that, report that they lost it."""
    log = (HERE.parent / "scripts" / "failures" / "torchrun_exit.txt").read_text()
    lost = "[pair.cc:561] Connection closed by peer [127.0.0.1]:2966."
    statements = {
        "worker/0": Statement(
            log.replace(": 3 (pid", f": {code} (pid").split("\n"), Raised("RuntimeError", lost)
        ),
        "worker/1": Statement((), Raised("RuntimeError", lost)),
    }
    exits = [
        TaskExited(task, "a", "1", 1, None, "", 0.0, ended, stopped=False)
        for task, ended in (("worker/1", 8.0), ("worker/0", 9.0))
    ]
    assert judge(exits, lambda task, _: statements[task]).cause_task == at_fault


def test_the_last_traceback_is_shown_in_full_unless_very_long() -> None:
    frame = ('  File "train.py", line 7, in step', "    loss = model(x)")
    chain = ("", "During handling of the above exception, another exception occurred:", "")
    first = ("Traceback (most recent call last):", *frame, "KeyError: 'x'")
    second = ("Traceback (most recent call last):", *frame * 6, "ValueError: no x")
    log = ("Epoch 1/3",) * 100 + first + chain + second
    whole = (*first, *chain, *second)
    assert lastwords.excerpt(log)[-len(whole) :] == whole
    noise = ("W0000 00:00 Unable to destroy server_ object",) * 3
    long = ("Traceback (most recent call last):", *frame * 60, "ValueError: no x", *noise)
    cut = lastwords.excerpt(log + long)
    assert len(cut) == 41
    assert cut[0] == long[0]
    assert "[85 lines omitted]" in cut
    assert cut[-4:] == long[-4:]
    handled = (*first, *("Epoch 2/3",) * 100)
    assert lastwords.excerpt(handled) == ("Epoch 2/3",) * 20


@pytest.mark.parametrize("line", [" " * 16_000, "Error in " * 10_000])
def test_a_long_line_is_cut_before_it_is_read(line: str) -> None:
    ends = [end(2, 0, (*RAISED, line, "ValueError: " + line), code=1)]
    lines = statement(ends[0][1]).lines
    assert max(map(len, lines)) <= LONGEST_LINE
    assert lines[-1].rstrip().endswith(line.strip()[-8:])  # where JAX reports the failure
    assert len(judge([ends[0][0]], hear(ends)).cause) < 400


@pytest.mark.parametrize(
    "data",
    [
        {"message": "x" * 10**6, "chain": [{"message": "y"}] * 10**4},
        {"type": "A\x1b]0;owned\x07", "message": "\x1b[2Jgone\r\x00", "file": "\u202e.py", "line": 10**40},
        {"chain": [None, 3, {"chain": [{"chain": [{}]}]}]},
    ],
)
def test_a_report_is_treated_as_untrusted_input(data: dict[str, Any]) -> None:
    ends = [end(2, 0, data, code=1)]
    verdict = judge([ends[0][0]], hear(ends))
    assert len(verdict.cause + verdict.why + verdict.hint) < 2000
    assert (verdict.cause + verdict.why).isprintable()
    assert len(Raised.parse(data).chain) <= 6


TRACEBACKS = sorted((HERE / "tracebacks").glob("*.txt"))
TEARDOWN = ("W0000 00:00:1795272237.622300   13079 local_rendezvous.cc:412] Local rendezvous aborts",) * 4


def log(path: Path) -> Lines:
    """Return the last lines of a log as they are read, without blank ones."""
    return tuple(line for line in path.read_text().split("\n") if line.strip())


def test_tracebacks_are_parsed_as_python_prints_them() -> None:
    text = ""
    for path in TRACEBACKS:
        read = Statement(log(path))
        text += f"{path.stem}: {read.exception}; {read.why}\n"
        within = (*TRAINING * 30, *log(path), *TEARDOWN)
        assert (Statement(within).exception, Statement(within).why) == (read.exception, read.why)
        excerpt = lastwords.excerpt(within)
        assert len(excerpt) <= 42
        assert not any(line.startswith("W0000") for line in excerpt)
        assert any(read.exception.partition(":")[0] in line for line in excerpt)
    matches_golden("verdict/tracebacks.txt", text)


STOP = log(HERE / "tracebacks" / "stop-3.8.txt")


@pytest.mark.parametrize(
    "aside", ["Exception in thread Thread-1 (work):", "Exception ignored in: <function Pool.__del__ at 0x7f>"]
)
def test_a_nonfatal_exception_yields_to_a_fatal_one(aside: str) -> None:
    other = (aside, *own("OSError: aside", '"a.py", line 1'))
    assert Statement((*STOP, *other)).exception == "StopIteration"
    assert Statement(other).exception == "OSError: aside"
    assert Statement((*STOP, *TRAINING * 30)).exception == ""  # the program survived it


COMPLAINTS = [
    (
        ("Error in py_call_impl(callable, dots$args, dots$keywords) : ", "  evaluation error", "Calls: fit"),
        "Error in py_call_impl(callable, dots$args, dots$keywords): evaluation error",
    ),
    (("bash: line 1: foo: command not found",), "bash: line 1: foo: command not found"),
    ((), ""),
]


@pytest.mark.parametrize(("lines", "quoted"), COMPLAINTS)
def test_programs_without_a_traceback_are_quoted_too(lines: Lines, quoted: str) -> None:
    assert lastwords.complaint((*TRAINING, *lines)) == quoted
