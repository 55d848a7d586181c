"""Programs whose tasks never connect to each other succeed with a warning; those that do, without one.

The programs are small ones with sockets, in the shape of what people write; tests/tf has TensorFlow's.
"""

from __future__ import annotations

import json
import os
import signal
import socket

import pytest

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk, until

STEPS = """
import os, socket, sys, time
HOSTS = [one.rpartition(":") for one in os.environ["ORCHESTRATE_HOSTS"].split(",")]
RANK = int(os.environ["ORCHESTRATE_RANK"])
def train():
    for step in range(1, 13):
        print(f"{step}/12 - 0s - loss: 0.5 - 10ms/epoch - 5ms/step", flush=True)
        time.sleep(0.5)
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
    # As `torchrun --standalone` does: a rendezvous with itself.
    "standalone": "l = serve(0, '127.0.0.1'); c = join(*l.getsockname()); a = l.accept(); train()",
    "standalone, by its own address": (
        "l = serve(int(HOSTS[RANK][2]), HOSTS[RANK][0]); c = join(*l.getsockname()); a = l.accept(); train()"
    ),
    "standalone, with a child": (
        "l = serve(0, '127.0.0.1')\nif os.fork() == 0:\n"
        "    c = join(*l.getsockname()); train(); os._exit(0)\n"
        "a = l.accept(); os.wait()"
    ),
    # As `torchrun --nnodes=1 --node_rank=0` copied to all hosts: each waits for nobody.
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
WORDS = "worker/[0-1] run separately: no task has opened a connection to another"


@pytest.mark.parametrize("name", APART)
def test_tasks_that_are_apart_are_reported(desk: Desk, name: str) -> None:
    desk.script("t.py", STEPS + APART[name])
    viewer = desk.launch("--", "t.py")
    viewer.shows(WORDS)
    assert not desk.named("RunEnded")  # while they train
    status = desk.start("status", desk.run_id())
    assert status.wait() == ExitStatus.OK
    assert f"warning: {WORDS}" in status.stdout
    assert viewer.wait() == ExitStatus.OK
    (ended,) = desk.named("RunEnded")
    assert ended["warnings"][0].startswith(WORDS)
    (told,) = desk.named("PeersReported")
    assert (told["apart"], told["connected"]) == (["worker/0", "worker/1"], False)
    as_json = desk.start("status", "--json", desk.run_id())
    as_json.wait()
    assert json.loads(as_json.stdout)["apart"] == ["worker/0", "worker/1"]


@pytest.mark.parametrize("name", TOGETHER)
def test_tasks_that_meet_are_not(desk: Desk, free_port: int, name: str) -> None:
    desk.script("t.py", STEPS + TOGETHER[name].replace("{port}", str(free_port)))
    viewer = desk.launch("--", "t.py")
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert not desk.named("PeersReported")


def test_a_keeper_that_takes_over_reports_them_no_second_time(desk: Desk) -> None:
    desk.script("t.py", STEPS + "train()\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.1)")
    viewer = desk.launch("--", "t.py", str(desk.folder / "enough"))
    viewer.shows(WORDS)
    run = desk.run_id()
    os.kill(desk.keeper(run), signal.SIGKILL)
    until("another keeper", lambda: desk.named("RunAdopted", run))
    (desk.folder / "enough").touch()
    assert viewer.wait() == ExitStatus.OK, viewer.stderr
    assert [told["apart"] for told in desk.named("PeersReported", run)] == [["worker/0", "worker/1"]]
    (ended,) = desk.named("RunEnded", run)
    assert WORDS in "".join(ended["warnings"])


def test_what_needs_no_peers_says_so_or_is_short(desk: Desk) -> None:
    desk.script("t.py", "print('done')")
    assert desk.launch("--", "t.py").wait() == ExitStatus.OK
    assert not desk.named("PeersReported")
    desk.script("t.py", STEPS + "train()")
    desk.hosts.write_text(desk.hosts.read_text() + '\n[job]\nframework = "none"\n')
    assert desk.launch("--", "t.py").wait() == ExitStatus.OK
    assert not desk.named("PeersReported")


@pytest.fixture
def free_port() -> int:

    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])
