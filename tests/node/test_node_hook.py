"""Reports of a task's own Python: the exception that ended it, its stacks, and its place."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.base import procs
from orchestrator.node.look import stacks as op
from orchestrator.node.task import environ, state
from tests.node.harness import Node, until

CHAIN = """
def read(record):
    try:
        record["images"]
    except KeyError as error:
        raise Exception("record 17 has no \\u2603") from error
read({})
"""


# JAX's own wait starts after the program's end, and here lasts until that is reported.
JAX_WAITS = """
import atexit, os, sys, threading, types
timer = threading.Timer
threading.Timer = lambda seconds, call: timer(0, call)
state = types.SimpleNamespace(client=CLIENT)
sys.modules["jax._src.distributed"] = types.SimpleNamespace(global_state=state)
report = os.environ["ORCHESTRATE_REPORT"]
def wait():
    while state.client and not os.path.getsize(report): pass
atexit.register(wait)
"""


def run(node: Node, folder: Path, text: str, **spec: Any) -> list[dict[str, Any]]:
    """Run a program, and return its reports of its end."""
    (folder / "train.py").write_text(text)
    node.start(sys.executable, str(folder / "train.py"), **spec)
    node.final()
    report = Path(node.task().report)
    lines = report.read_text().splitlines() if report.exists() else []
    return [record for record in map(json.loads, lines) if record["kind"] in ("error", "data")]


def test_the_outermost_exception_is_reported_with_its_cause(node: Node, tmp_path: Path) -> None:
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
        ("raise ValueError('x' * 100_000 + 'y')", "ValueError", "x" * 1000 + "\n...\n" + "x" * 2994 + "y"),
        ("import json; json.loads('{')", "json.decoder.JSONDecodeError", "Expecting property name"),
        ("class Odd(BaseException):\n def __str__(self): 1/0\nraise Odd", "Odd", "<exception str() failed>"),
        ("next(iter([]))", "StopIteration", ""),
    ],
)
def test_every_end_is_reported(node: Node, tmp_path: Path, text: str, kind: str, message: str) -> None:
    (error,) = run(node, tmp_path, text)
    assert error["type"] == kind
    assert error["message"].startswith(message)


@pytest.mark.parametrize(
    ("note", "reported"),
    [("while reading file 7", "while reading file 7"), ("-" * 20 + "\nFor simplicity, JAX has", None)],
)
def test_a_note_of_the_program_is_reported(
    node: Node, tmp_path: Path, note: str, reported: str | None
) -> None:
    (error,) = run(node, tmp_path, f"error = ValueError('bad')\nerror.add_note({note!r})\nraise error")
    assert error.get("note") == reported


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
def test_nonfatal_exceptions_are_not_reported(node: Node, tmp_path: Path, text: str) -> None:
    assert run(node, tmp_path, text) == []


@pytest.mark.parametrize(
    "start", ["subprocess.run(argv)", "subprocess.run(argv, check=True)", "os.execv(*argv)"]
)
def test_the_exception_of_a_script_that_the_program_starts_is_reported(
    node: Node, tmp_path: Path, start: str
) -> None:
    (tmp_path / "script.py").write_text("open('/no/data')")
    argv = [sys.executable, str(tmp_path / "script.py")]
    program = f"import os, subprocess\nargv = {argv}\n"
    errors = run(node, tmp_path, program + start.replace("*argv", "argv[0], argv"))
    assert [error["message"] for error in errors] == ["[Errno 2] No such file or directory: '/no/data'"]


@pytest.mark.parametrize("several", [True, False])
def test_jax_waiting_for_other_tasks_is_reported(node: Node, tmp_path: Path, several: bool) -> None:
    records = run(node, tmp_path, JAX_WAITS.replace("CLIENT", str(several)).replace("=False", "=None"))
    message = "the program has finished, and waits up to 5 min for tasks that still run"
    assert records == ([{"kind": "data", "name": "JAX", "step": message}] if several else [])


def test_the_report_is_off_with_the_other_hooks(node: Node, tmp_path: Path) -> None:
    assert run(node, tmp_path, "1/0", stacks=False) == []


# --- Stacks of a task's processes, wherever they hang, collected without harm ---

SLEEP = """
import time
def nap():
    time.sleep(600)
print("up", flush=True)
nap()
"""


class _Agent:
    """The part of an agent that the operation uses."""

    def __init__(self, node: Node) -> None:
        self.paths = node.paths


def stacks(node: Node, **fields: Any) -> list[dict[str, Any]]:
    """Return the stacks of processes of worker/0, or of `task`."""
    task = fields.pop("task", "worker/0")
    found = op.stacks(_Agent(node), {"run": node.run, **fields})["tasks"]  # type: ignore[arg-type]
    return next((one["processes"] for one in found if one["task"] == task), [])


def up(node: Node) -> None:
    until(lambda: b"up\n" in node.log("worker/0"), what="the program is up")


def test_a_suspended_task_is_reported_and_not_signaled(node: Node) -> None:
    pid = node.start(sys.executable, "-c", SLEEP)["pid"]
    up(node)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: procs.status(pid) == "T")
    (found,) = stacks(node)
    assert (found["state"], found["text"]) == ("T", "")
    assert "stopped" in found["why"]
    assert not procs.signals(pid)["ShdPnd"]
    os.kill(pid, signal.SIGCONT)
    until(lambda: "nap" in stacks(node)[0]["text"])


@pytest.mark.parametrize("argv", [("sleep", "600"), ("bash", "-c", "sleep 600 & wait")])
def test_a_task_without_python_is_reported_and_unharmed(node: Node, argv: tuple[str, ...]) -> None:
    pid = node.start(*argv)["pid"]
    until(lambda: len(stacks(node)) == len(argv) - 1)
    assert not any(one["python"] or one["text"] for one in stacks(node))
    assert not procs.signals(pid)["SigCgt"] & (1 << (environ.SIGNAL - 1))
    assert not state.is_final(node.state_of())


def test_forked_and_spawned_children_are_shown(node: Node) -> None:
    code = """
import multiprocessing, os, sys, time
other = "print('child', flush=True)\\nimport time\\ndef other(): time.sleep(600)\\nother()"
def child():
    print("child", flush=True)
    time.sleep(600)
if __name__ == "__main__":
    fork = multiprocessing.get_context("fork").Process(target=child); fork.start()
    os.spawnl(os.P_NOWAIT, sys.executable, "python", "-c", other)
    print("up", flush=True)
    fork.join()
"""
    node.start(sys.executable, "-c", code)
    places = ("join", "child", "other")

    def shown() -> list[list[str]]:
        return [[name for name in places if f"in {name}\n" in one["text"]] for one in stacks(node)]

    until(lambda: shown() == [["join"], ["child"], ["other"]], what="each is seen where it stays")


# --- the chained sitecustomize ---


def test_an_existing_signal_handler_wins(node: Node) -> None:
    handler = f"import signal; signal.signal({environ.SIGNAL}, lambda *_: print('mine', flush=True))"
    (node.folder / "sitecustomize.py").write_text(handler)
    pid = node.start(sys.executable, "-c", SLEEP, env={"PYTHONPATH": str(node.folder)})["pid"]
    up(node)
    assert "not prepared" in stacks(node)[0]["why"]
    os.kill(pid, environ.SIGNAL)
    until(lambda: b"mine" in node.log())


# --- What our hook gives a task's JAX, tested with a fake JAX: tests/frameworks has the real one ---

CLUSTERS = """
class ClusterEnv:
    _cluster_types = []
    def __init_subclass__(cls):
        cls._cluster_types.append(cls)
class Slurm(ClusterEnv):
    is_env_present = classmethod(lambda cls: True)
"""
PROGRAM = """
import os, jax._src.clusters as clusters
first, *others = clusters.ClusterEnv._cluster_types
print(first.name, first.is_env_present(), len(others))
print(first.get_coordinator_address(timeout_secs=1), first.get_process_count(), first.get_process_id())
print("grpc_proxy" in os.environ)
"""
PLACE = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}


def out(node: Node, folder: Path, clusters: str, program: str, **spec: Any) -> list[bytes]:
    package = folder / "jax" / "_src"
    package.mkdir(parents=True)
    for path in (folder / "jax" / "__init__.py", package / "__init__.py"):
        path.touch()
    (package / "clusters.py").write_text(clusters)
    (folder / "train.py").write_text(program)
    node.start(sys.executable, str(folder / "train.py"), **spec)
    node.final()
    return node.log().splitlines()


@pytest.mark.parametrize("proxy", [{}, {"HTTPS_PROXY": "http://cache:3128"}], ids=["", "proxy"])
def test_jax_gets_its_place_in_the_cluster(node: Node, tmp_path: Path, proxy: dict[str, str]) -> None:
    lines = out(node, tmp_path, CLUSTERS, PROGRAM, env={**PLACE, **proxy})
    assert lines == [b"orchestrate True 1", b"a:1 4 3", str(bool(proxy)).encode()]


def test_an_unsupported_jax_is_left_alone(node: Node, tmp_path: Path) -> None:
    assert out(node, tmp_path, "x = 1\n", "import jax._src.clusters as c; print(c.x)", env=PLACE) == [b"1"]
