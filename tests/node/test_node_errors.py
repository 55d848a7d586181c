"""What a task's own Python says of the exception that ended it, and who may say it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.node.harness import Node

CHAIN = """
def read(record):
    try:
        record["images"]
    except KeyError as error:
        raise Exception("record 17 has no \\u2603") from error
read({})
"""


def run(node: Node, folder: Path, text: str, **spec: Any) -> list[dict[str, Any]]:
    """What it reports of its errors."""
    (folder / "train.py").write_text(text)
    node.start(sys.executable, str(folder / "train.py"), **spec)
    node.final()
    report = Path(node.task().report)
    lines = report.read_text().splitlines() if report.exists() else []
    return [record for record in map(json.loads, lines) if record["kind"] == "error"]


def test_the_outermost_exception_and_what_it_came_from(node: Node, tmp_path: Path) -> None:
    (error,) = run(node, tmp_path, CHAIN)
    place = {"file": str(tmp_path / "train.py")}
    assert error == {
        "kind": "error",
        "type": "Exception",
        "message": "record 17 has no \N{SNOWMAN}",
        "line": 6,
        "chain": [{"type": "KeyError", "message": "'images'", "line": 4, **place}],
        **place,
    }
    assert b"record 17 has no" in node.log()
    assert b"direct cause" in node.log()


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("def f(:\n", "SyntaxError", "invalid syntax (train.py, line 1)"),
        ("raise ValueError('x' * 100_000)", "ValueError", "x" * 4000),
        ("import json; json.loads('{')", "json.decoder.JSONDecodeError", "Expecting property name"),
        ("class Odd(BaseException):\n def __str__(self): 1/0\nraise Odd", "Odd", "<exception str() failed>"),
        ("next(iter([]))", "StopIteration", ""),
    ],
)
def test_every_kind_of_end_is_told(node: Node, tmp_path: Path, text: str, kind: str, message: str) -> None:
    (error,) = run(node, tmp_path, text)
    assert error["type"] == kind
    assert error["message"].startswith(message)
    assert len(error["message"]) <= 4000


@pytest.mark.parametrize(
    "text",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('usage: train.py DIR')",
        "import sys\nsys.excepthook = lambda *_: print('mine')\n1/0",
        "import os; os._exit(3)",
        "import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start(); thread.join()",
        (
            "import multiprocessing\ndef f(): raise ValueError('child')\n"
            "if __name__ == '__main__':\n"
            " for way in ('fork', 'spawn'):\n"
            "  one = multiprocessing.get_context(way).Process(target=f); one.start(); one.join()"
        ),
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', '1/0'])",
        "import os\nif os.fork() == 0: 1/0\nos.wait()",
    ],
)
def test_what_does_not_end_the_program_is_not_told(node: Node, tmp_path: Path, text: str) -> None:
    assert run(node, tmp_path, text) == []


def test_it_is_off_with_the_rest(node: Node, tmp_path: Path) -> None:
    assert run(node, tmp_path, "1/0", stacks=False) == []
