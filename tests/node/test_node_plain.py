"""A task's Python is the user's: each program prints and ends as `python train.py` by hand does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.node.hook import sitecustomize
from orchestrator.node.task import environ
from tests.node.harness import Node

SPAWN = """
import multiprocessing, sys
def work(x):
    return x * x, sys.excepthook is sys.__excepthook__ or "wrapped"
if __name__ == "__main__":
    with multiprocessing.get_context("{way}").Pool(2) as pool:
        print(pool.map(work, [1, 2, 3]))
"""
PROGRAMS = {
    "nothing is frozen": "import gc; print(gc.get_freeze_count(), gc.isenabled(), gc.get_threshold())",
    "exit is Python's": "import sys; print(sys.exit, sys.exit.__module__); sys.exit(3)",
    "exit with words": "import sys; sys.exit('usage: train.py DIR')",
    "a hook that hands on": (
        "import sys\nbefore = sys.excepthook\n"
        "def hook(*found):\n    print('mine'); before(*found)\n"
        "sys.excepthook = hook\n1 / 0"
    ),
    "a thread's exception": (
        "import threading\nthreading.excepthook = lambda found: print(found.exc_type)\n"
        "thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()"
    ),
    "spawned": SPAWN.format(way="spawn"),
    "forked by a server": SPAWN.format(way="forkserver"),
    "pickled": (
        "import pickle, sys\nclass A:\n    x = 1\n"
        "print(pickle.dumps(A()), pickle.loads(pickle.dumps(A())).x, pickle.dumps(sys.exit))"
    ),
    "a module named as one of Python's": "import json; print(json.mine)",
    "finders and paths": "import sys; print(len(sys.meta_path), sys.path[1:], sys.flags, sys.argv)",
    "signals": "import signal; print([signal.getsignal(n) for n in (2, 10, 12, 14, 15)])",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_as_by_hand(node: Node, tmp_path: Path, name: str) -> None:
    if "json" in PROGRAMS[name]:
        (tmp_path / "json.py").write_text("mine = 1\n")
    program = tmp_path / "train.py"
    program.write_text(PROGRAMS[name])
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    plain = subprocess.run(
        [sys.executable, str(program)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**env, "PYTHONUNBUFFERED": "1"},
        check=False,
        timeout=60,
    )
    node.start(sys.executable, str(program), env={"PYTHONUNBUFFERED": "1"})
    final = node.final()
    assert node.log().decode() == plain.stdout.decode()
    assert final["exit_code"] == plain.returncode


LINES = "print('a', 'b'); print('half', end='')"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LINES!r}])"


@pytest.mark.parametrize(
    ("unbuffered", "program", "writes"),
    [
        ("1", LINES, [b"a b\n", b"half"]),
        ("", LINES, [b"a b\nhalf"]),
        ("1", CHILD, [b"a", b" ", b"b", b"\n", b"half", b""]),  # somebody may wait for half a line of it
    ],
)
def test_a_line_is_one_write(tmp_path: Path, unbuffered: str, program: str, writes: list[bytes]) -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # each write is a message
    hook = {
        "PYTHONPATH": str(Path(sitecustomize.__file__).parent),
        "PYTHONUNBUFFERED": unbuffered,
        "ORCHESTRATE_STACKS": f"{environ.SIGNAL}:{tmp_path}/stacks",
        "ORCHESTRATE_REPORT": str(tmp_path / "report"),
    }
    with ours, its:
        argv = [sys.executable, "-c", program]
        subprocess.run(argv, stdout=its.fileno(), env={**os.environ, **hook}, check=True)
        its.send(b"end")
        assert list(iter(lambda: ours.recv(100), b"end")) == writes
