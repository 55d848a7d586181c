"""Programs whose tasks never connect to each other succeed with a warning; connected ones, without.

The programs are small, use sockets, and resemble real ones; tests/tf has TensorFlow programs, one of them
with connected tasks.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.errors import ExitStatus
from orchestrator.node.base.procs import COOKIE
from tests.ports import free_ports
from tests.ssh.runs.desk import Desk, until

STEPS = """
import os, sys, time
for step in range(1, 13):
    print(f"{step}/12 - 0s - loss: 0.5 - 10ms/epoch - 5ms/step", flush=True)
"""

# Acts as the supervisor: starts the program, checks it on request, and prints the result.
NODE = """
import os, subprocess, sys, time
from orchestrator.node.task.meeting import Meeting, tables
meeting = Meeting(os.environb, sys.argv[1], "/no report")
meeting.resolve()
meeting.remember(tables(os.getpid()))
cookie = {sys.argv[2]: f"{sys.argv[1]}/1/worker/{os.environ['ORCHESTRATE_RANK']}/1"}
with subprocess.Popen([*sys.argv[5:], "-c", sys.argv[3]], env={**os.environ, **cookie}) as program:
    sys.stdin.readline()
    if sys.argv[4]:
        program.wait()
        meeting.hurry()
    meeting.look(meeting.due)
    print(meeting.state, flush=True)
    sys.stdin.readline()
    program.kill()
"""
TASK = """
import os, socket, time
HOSTS = [one.rpartition(":") for one in os.environ["ORCHESTRATE_HOSTS"].split(",")]
RANK = int(os.environ["ORCHESTRATE_RANK"])
def train():
    print("up", flush=True)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.05)
def serve(port, host=""):
    return socket.create_server((host, port))
def join(host, port):
    while True:
        try:
            return socket.create_connection((host, port))
        except OSError:
            time.sleep(0.05)
"""

APART = {
    "without a strategy": "train()",
    "as rank 0 of 1": "serve(int(HOSTS[RANK][2])); train()",
    # As with `torchrun --standalone`: a rendezvous with itself.
    "standalone": "l = serve(0, '127.0.0.1'); c = join(*l.getsockname()); a = l.accept(); train()",
    "standalone, by its own address": (
        "l = serve(int(HOSTS[RANK][2]), HOSTS[RANK][0]); c = join(*l.getsockname()); a = l.accept(); train()"
    ),
    "standalone, with a child": (
        "l = serve(0, '127.0.0.1')\nif os.fork() == 0:\n"
        "    c = join(*l.getsockname()); train(); os._exit(0)\n"
        "a = l.accept(); os.wait()"
    ),
    # As with `torchrun --nnodes=1 --node_rank=0` on every host: none waits for another.
    "all of them rank 0": "RANK = 0; l = serve(0); train()",
}
TOGETHER = {
    "by the task's port": (
        "p = int(HOSTS[0][2])\nif RANK == 0:\n    l = serve(p, HOSTS[0][0]); a = l.accept()\n"
        "else:\n    c = join(HOSTS[0][0], p)\ntrain()"
    ),
    "by a port of its own": (
        "if RANK == 0:\n    l = serve({port}); a = l.accept()\n"
        "else:\n    c = join(HOSTS[0][0], {port})\ntrain()"
    ),
    "by loopback, from a child": (
        "if RANK == 0:\n    l = serve({port}); a = l.accept()\n    train()\nelif os.fork() == 0:\n"
        "    c = join('localhost', {port}); train(); os._exit(0)\nelse:\n    os.wait()"
    ),
}
BRIEF = {  # closed before the first check; the second task closes its end first
    "briefly, by the task's port": (
        "p = int(HOSTS[0][2])\nif RANK == 0:\n    l = serve(p); a = l.accept()[0]; a.recv(1)\n"
        "else:\n    join('localhost', p).close()\nprint('up', flush=True)"
    )
}
WORDS = "worker/[0-1] run separately: no task has opened a connection to another"
ROOT = str(Path(__file__).parents[3])


@pytest.mark.parametrize("name", [*APART, *TOGETHER, *BRIEF])
def test_a_node_sees_whether_its_task_meets_another(name: str) -> None:
    states = states_of({**APART, **TOGETHER, **BRIEF}[name], over="over" if name in BRIEF else "")
    # Of a brief connection only the side that closed it first has a trace.
    assert ("none" in states, "met" in states) == (name not in TOGETHER, name not in APART)


LAUNCHER = (
    "import os, subprocess, sys; path = sys.argv[1];"
    " subprocess.run(sys.argv[2:], env={**os.environ, 'PYTHONPATH': path})"
)
PATCHED = {
    "as it was started": ([], "met"),
    "added to": (["env", f"PYTHONPATH=src:{ROOT}"], "met"),
    "replaced": (["env", "PYTHONPATH=src"], "unpatched"),
    "replaced by a script": (["sh", "-c", 'PYTHONPATH=src "$0" "$@"; exit'], "unpatched"),
    "replaced by a program": ([sys.executable, "-c", LAUNCHER, "src"], "unpatched"),
    "ignored": (["sh", "-c", 'exec "$0" -E "$@"'], "unpatched"),
    "ignored by the program's launcher": ([sys.executable, "-I", "-c", LAUNCHER, ROOT], "met"),
}


@pytest.mark.parametrize("name", PATCHED)
def test_a_node_detects_a_program_that_ignores_the_hook(name: str) -> None:
    words, state = PATCHED[name]
    python = [*words, sys.executable]
    assert states_of(TOGETHER["by the task's port"], python, ORCHESTRATE_AUTO_SHARD="data") == [state] * 2


def states_of(
    program: str, python: Sequence[str] = (sys.executable,), over: str = "", **more: str
) -> list[str]:
    """Run two tasks; return what their nodes report about their contact."""
    *ports, other = free_ports(3)
    program = TASK + program.replace("{port}", str(other))
    hosts = ",".join(f"127.0.0.{number}:{port}" for number, port in enumerate(ports, 2))
    with ExitStack() as stack:
        nodes = []
        for rank in ("0", "1"):
            env = {
                **os.environ,
                "ORCHESTRATE_HOSTS": hosts,
                "ORCHESTRATE_RANK": rank,
                "PYTHONPATH": ROOT,
                **more,
            }
            argv = [sys.executable, "-c", NODE, f"peers-{other}", COOKIE, program, over, *python]
            process = subprocess.Popen(
                argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            stack.enter_context(process)
            assert process.stdin is not None
            assert process.stdout is not None
            nodes.append((process.stdin, process.stdout))
        for _, output in nodes:
            assert output.readline() == "up\n"
        for ask, _ in nodes:
            ask.write("look\n")
        return [output.readline().strip() for _, output in nodes]


def test_unconnected_tasks_are_reported_once(desk: Desk) -> None:
    desk.script("t.py", STEPS + "while not os.path.exists(sys.argv[1]): time.sleep(0.05)")
    viewer, run = desk.begin("--", "t.py", str(desk.folder / "enough"))
    viewer.shows(WORDS)
    status, as_json = desk.start("status", run), desk.start("status", "--json", run)
    assert (status.wait(), as_json.wait()) == (ExitStatus.OK, ExitStatus.OK)
    assert f"warning: {WORDS}" in status.stdout
    assert json.loads(as_json.stdout)["apart"] == ["worker/0", "worker/1"]
    os.kill(desk.keeper(run), signal.SIGKILL)
    until("another keeper", lambda: desk.named("RunAdopted", run))
    (desk.folder / "enough").touch()
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    (report,) = desk.named("PeersReported", run)
    assert (report["apart"], report["connected"]) == (["worker/0", "worker/1"], False)
    (ended,) = desk.named("RunEnded", run)
    assert ended["warnings"][0].startswith(WORDS)


# Its strategy has not reduced anything yet, and connects long after the first steps.
LATE = """
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
open(os.environ["ORCHESTRATE_REPORT"] + ".idle", "w").close()
if RANK == 0:
    a = serve(int(HOSTS[0][2])).accept()[0]
else:
    c = join("localhost", int(HOSTS[0][2]))
while not os.path.exists(sys.argv[2]): time.sleep(0.05)
"""


def test_tasks_that_connect_late_are_no_longer_reported_as_unconnected(desk: Desk) -> None:
    desk.script("t.py", STEPS + TASK + LATE)
    viewer = desk.launch("--", "t.py", str(desk.folder / "connect"), str(desk.folder / "enough"))
    viewer.shows(WORDS)
    (desk.folder / "connect").touch()
    viewer.shows("worker/[0-1] train separate models")
    (desk.folder / "enough").touch()
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    (ended,) = desk.named("RunEnded", desk.run_id())
    assert [warning.partition(":")[0] for warning in ended["warnings"]] == [
        "worker/[0-1] train separate models"
    ]


@pytest.mark.parametrize("framework", ["none", "tensorflow"])
def test_programs_that_need_no_peers_get_no_warning(desk: Desk, framework: str) -> None:
    desk.script("t.py", STEPS if framework == "none" else "print('done')")
    desk.write_hosts(desk.cluster.hosts, job=f'[job]\nframework = "{framework}"\n')
    desk.launch("--", "t.py").ended()
    assert not desk.named("PeersReported")
