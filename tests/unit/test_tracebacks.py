"""Tracebacks as Python 3.8 and 3.13 (with colours) printed them, and as one line says them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.diagnosis import lastwords
from orchestrator.diagnosis.statement import Statement

TRACEBACKS = Path(__file__).parent / "tracebacks"

ZERO = "because of ZeroDivisionError: division by zero"
KEY = "because of KeyError: 'images'"
SHARD = "because of ValueError: shard 3 is empty"

# file -> (the exception in one line, where it was raised, from what)
SAID = {
    "chained": ("Exception: record 17 has no images", "chained.py, line 5", KEY),
    "during": ("zipfile.BadZipFile: File is not a zip file", "during.py, line 5", ZERO),
    "group": ("ExceptionGroup: 2 shards failed (2 sub-exceptions)", "group.py, line 7", SHARD),
    "imports": ("SyntaxError: invalid syntax", "a_module_that_imports_badly.py, line 1", ""),
    "indent": (
        "IndentationError: unindent does not match any outer indentation level",
        "indent.py, line 3",
        "",
    ),
    "long": ("ValueError: Layer mismatch: layer 0: shape (32, 0)", "long.py, line 1", ""),
    "notes": ("ValueError: bad shard", "notes.py, line 2", ""),
    "own-3.8": ("Inner: of our own", "own.py, line 5", ""),
    "own-3.13": ("Outer.Inner: of our own", "own.py, line 5", ""),
    "stop": ("StopIteration", "stop.py, line 1", ""),
    "syntax": ("SyntaxError: invalid syntax", "syntax.py, line 2", ""),
}
FILES = sorted(TRACEBACKS.glob("*.txt"))
EPOCH = ("Epoch 1/3", " 3/5 [====>....] - ETA: 0s - loss: 2.3")
TEARDOWN = (
    "W0000 00:00:1795272237.622300   13079 local_rendezvous.cc:412] Local rendezvous is aborting",
) * 4


def log(path: Path) -> tuple[str, ...]:
    """As the last lines of a log are read: without blank ones."""
    return tuple(line for line in path.read_text().split("\n") if line.strip())


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_traceback_is_read_as_python_prints_it(path: Path) -> None:
    exception, where, cause = SAID.get(path.stem) or SAID[path.stem.rpartition("-")[0]]
    for lines in (log(path), (*EPOCH * 30, *log(path), *TEARDOWN)):
        read = Statement(lines)
        assert read.exception == exception
        place, _, because = read.why.replace("/home/train/", "").partition(", because")
        assert place == f"raised at {where}"
        assert f"because{because}".startswith(cause) if because else not cause


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_what_is_shown_begins_with_the_traceback_and_holds_the_exception(path: Path) -> None:
    shown = lastwords.excerpt((*EPOCH * 30, *log(path), *TEARDOWN))
    assert len(shown) <= 42
    assert not any(line.startswith("W0000") for line in shown)
    name = Statement(log(path)).exception.partition(":")[0]
    assert any(name in line for line in shown)


def test_an_exception_that_the_program_survived_is_not_its_end() -> None:
    assert Statement((*log(TRACEBACKS / "stop-3.8.txt"), *EPOCH * 30)).exception == ""


@pytest.mark.parametrize(
    "aside", ["Exception in thread Thread-1 (work):", "Exception ignored in: <function Pool.__del__ at 0x7f>"]
)
def test_an_exception_that_ends_no_program_yields_to_one_that_does(aside: str) -> None:
    other = (
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in work',
        "    1/0",
        "OSError: aside",
    )
    lines = (*log(TRACEBACKS / "stop-3.8.txt"), aside, *other)
    assert Statement(lines).exception == "StopIteration"
    assert Statement((aside, *other)).exception == "OSError: aside"


COMPLAINTS = [
    (
        (
            "Error in library(tensorflow) : there is no package called \u2018tensorflow\u2019",
            "Execution halted",
        ),
        "Error in library(tensorflow): there is no package called \u2018tensorflow\u2019",
    ),
    (
        ("Error in py_call_impl(callable, dots$args, dots$keywords) : ", "  evaluation error", "Calls: fit"),
        "Error in py_call_impl(callable, dots$args, dots$keywords): evaluation error",
    ),
    (
        ("usage: t.py [-h] --data DATA", "t.py: error: the following arguments are required: --data"),
        "t.py: error: the following arguments are required: --data",
    ),
    (("bash: line 1: foo: command not found",), "bash: line 1: foo: command not found"),
    (("python3: can't open file 'x.py': [Errno 2]",), "python3: can't open file 'x.py': [Errno 2]"),
    (EPOCH, ""),
]


@pytest.mark.parametrize(("lines", "said"), COMPLAINTS)
def test_programs_without_a_traceback_are_quoted_too(lines: tuple[str, ...], said: str) -> None:
    assert lastwords.complaint((*EPOCH, *lines)) == said


THREAD = (
    "Exception in thread Thread-1 (work):",
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.11/threading.py", line 1038, in _bootstrap_inner',
    "    self.run()",
    '  File "feed.py", line 4, in work',
    "    read('/data/shard-1')",
    "FileNotFoundError: no shard 1",
)
EMPTY = (
    "Traceback (most recent call last):",
    '  File "feed.py", line 6, in <module>',
    "    q.get(timeout=9)",
    '  File "/usr/lib/python3.11/queue.py", line 179, in get',
    "    raise Empty",
    "_queue.Empty",
)
CALLED = (
    "Traceback (most recent call last):",
    '  File "prepare.py", line 2, in <module>',
    "    subprocess.run(words, check=True)",
    '  File "/usr/lib/python3.11/subprocess.py", line 571, in run',
    "    raise CalledProcessError(retcode, process.args,",
    "subprocess.CalledProcessError: Command '['tar']' returned non-zero exit status 2.",
)
CHILD = (
    "Traceback (most recent call last):",
    '  File "child.py", line 1, in <module>',
    "LookupError: no vocab",
)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            (*THREAD, "Epoch 1/3", *EMPTY),
            "raised at feed.py, line 6; a thread had failed: FileNotFoundError: no shard 1 (feed.py, line 4)",
        ),
        (
            (*CHILD, *CALLED),
            "raised at prepare.py, line 2; the child had said: LookupError: no vocab (child.py, line 1)",
        ),
        (
            ("tar: /x.tar: Cannot open", *CALLED),
            "raised at prepare.py, line 2; the child had said: tar: /x.tar: Cannot open",
        ),
        ((*CHILD, "caught, and trained on", *EMPTY), "raised at feed.py, line 6"),
        ((*CHILD, *EMPTY), "raised at feed.py, line 6"),
    ],
    ids=["thread", "child", "a child that is no Python", "printed, and gone on", "printed"],
)
def test_what_had_failed_before_is_said_where_it_may_be_why(lines: tuple[str, ...], why: str) -> None:
    assert Statement(lines).why == why
