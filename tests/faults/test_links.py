"""A link between two machines that is cut while a run trains: the verdict names it, however the tasks end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import corruption
from tests.faults.ground import PORT, Ground, missing
from tests.node.harness import until

# What TensorFlow says of a peer that is silent, when the test says so.
_TASK = """
import os, sys, time
open(sys.argv[1] + "/up-" + str(os.getpid()), "w").close()
while not os.path.exists(sys.argv[1] + "/go"):
    time.sleep(0.01)
words = "UnavailableError: The following tasks are unhealthy (stopped sending heartbeats):"
sys.exit(words + "\\n/job:worker/task:1")
"""


def ended(state: Path) -> bool:
    """Whether the node has written down how its task ended."""
    return any(b'"state": "exited"' in path.read_bytes() for path in state.glob("runs/**/state.json"))


def resume(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    if why := missing():
        pytest.skip(why)
    with Ground(tmp_path) as made:
        yield made


def test_tasks_that_all_end_at_once_do_not_hide_it(ground: Ground, tmp_path: Path) -> None:
    entries = [
        f'[[host]]\nname = "{name}"\nssh = "local"\n'
        f'address = "{ground.address(name)}"\ntask_port = {PORT + number}\n'
        f'agent_python = "{tmp_path}/{name}-python"\nworkdir = "{tmp_path}/{name}/work"\n'
        f'state = "{tmp_path}/{name}/state"\n'
        for number, name in enumerate(("h1", "h2"))
    ]
    (tmp_path / "hosts.toml").write_text("\n".join(entries))
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(_TASK)
    state = tmp_path / "state"
    argv = ["launch", "--hosts", str(tmp_path / "hosts.toml"), "--skip-preflight", "--no-validate"]
    code = "from orchestrator.cli.main import run; run()"
    with (
        subprocess.Popen(
            [sys.executable, "-c", code, *argv, "--", "python3", "train.py", str(tmp_path)],
            cwd=project,
            env={**os.environ, "XDG_STATE_HOME": str(state)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as launch,
        contextlib.ExitStack() as last,
    ):
        last.callback(launch.kill)
        until(lambda: len(list(tmp_path.glob("up-*"))) == 2 or launch.poll() is not None)
        assert launch.poll() is None, launch.communicate()
        (folder,) = (state / "orchestrate" / "runs").glob("2*")
        (keeper,) = corruption.keepers(folder)
        os.kill(keeper, signal.SIGSTOP)  # it hears of both ends in one moment
        last.callback(resume, keeper)
        ground.shell("on h2 iptables -A INPUT -i eth0 -j DROP")
        (tmp_path / "go").touch()
        until(lambda: all(ended(tmp_path / name / "state") for name in ("h1", "h2")))
        resume(keeper)
        said, _ = launch.communicate(timeout=120)
    assert launch.returncode == 1, said
    assert "h1 and h2 do not reach each other since" in said
