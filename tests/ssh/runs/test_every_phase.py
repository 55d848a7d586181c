"""SIGTERM, or a killed viewer and keeper, in phases that run processes: nothing is left behind.

tests/sim covers the same, and a double Ctrl-C, at every moment of the phases in between.
"""

import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.errors import ExitStatus
from orchestrator.rehearsal import Cluster
from orchestrator.sync.contents import DataPath, read_data
from tests.ssh.runs.desk import FAMILY, HOSTILE, Desk, Viewer, until

BOUND = 40.0  # seconds; everything ends much sooner unless the machine is busy
JOB = "[job]\ngrace = 1\n"
SLEEPER = "#!/bin/sh\ntouch {mark}\nexec sleep 600\n"


@dataclass
class Held:
    """A launch that stays in one phase, and a check that it has reached it."""

    desk: Desk
    words: tuple[str, ...]
    fast: bool
    there: Callable[[str], object]  # by run id

    def launch(self) -> tuple[Viewer, str]:
        """Launch it, wait until it is in its phase, and return the viewer and the run's id."""
        viewer, run = self.desk.begin(*self.words, fast=self.fast)
        until("the phase is reached", lambda: self.there(run))
        return viewer, run


def started(desk: Desk, phase: str) -> Callable[[str], object]:
    return lambda run: [e for e in desk.named("PhaseStarted", run) if e["phase"] == phase]


@contextmanager
def in_connect(desk: Desk) -> Iterator[Held]:
    """One host's port is open but never responds."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        with desk.cluster.ssh_config.open("a") as config:
            config.write(
                f"Host silent-{port}\n    HostName 127.0.0.1\n    Port {port}\n    ConnectTimeout 4\n"
            )
        first, second = desk.cluster.hosts
        silent = replace(second, name="silent", ssh=f"silent-{port}")
        desk.write_hosts([first, silent], job=JOB)
        yield Held(desk, ("--", "true"), True, lambda run: desk.named("HostConnected", run))


@contextmanager
def in_preflight(desk: Desk) -> Iterator[Held]:
    """One host's training Python does not respond."""
    mark = desk.folder / "asked"
    python = desk.program("slow python", SLEEPER.format(mark=shlex.quote(str(mark))))
    first, second = desk.cluster.hosts
    desk.write_hosts([first, replace(second, python=str(python))], job=JOB)
    yield Held(desk, ("--", "true"), False, lambda _: mark.exists())


@contextmanager
def in_data(desk: Desk) -> Iterator[Held]:
    """Another endless transfer is sending the same data to the second host."""
    labels = desk.folder / "labels.csv"
    labels.write_text("0,1,2\n")
    sent = read_data([DataPath("files/labels.csv", labels)])
    folder = Path(desk.cluster.hosts[1].workdir).expanduser() / "data"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / sent.digest, ignore_errors=True)
    desk.write_hosts(desk.cluster.hosts, job=f"{JOB}[data]\npaths = [{json.dumps(str(labels))}]\n")
    with (folder / f".lock-{sent.digest}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Held(desk, ("--", "true"), True, started(desk, "data"))


@contextmanager
def in_validate(desk: Desk) -> Iterator[Held]:
    """A custom validation with child processes that never ends and ignores signals."""
    family = desk.script("family.py", FAMILY)
    job = JOB + f"validate = 'python3 {family}'\n"
    desk.write_hosts(desk.cluster.hosts, job=job)
    logs = ("validate/worker-0.log", "validate/worker-1.log")

    def there(run: str) -> bool:
        paths = [desk.run_folder(run) / "logs" / name for name in logs]
        return all(path.exists() and b"family is up" in path.read_bytes() for path in paths)

    yield Held(desk, ("--skip-preflight", "--", "true"), False, there)


PHASES = {
    "connect": in_connect,
    "preflight": in_preflight,
    "data": in_data,
    "validate": in_validate,
}


@pytest.fixture
def desk(cluster: Cluster, tmp_path: Path) -> Iterator[Desk]:
    with closing(Desk(cluster, tmp_path / HOSTILE)) as made:
        yield made


@pytest.fixture
def held(desk: Desk, request: pytest.FixtureRequest) -> Iterator[Held]:
    with PHASES[request.param](desk) as made:
        yield made


@pytest.mark.parametrize("held", PHASES, indirect=True)
def test_a_stop_request_ends_the_run(held: Held) -> None:
    desk = held.desk
    viewer, run = held.launch()
    viewer.signal(signal.SIGTERM)
    assert viewer.wait(BOUND) == ExitStatus.INTERRUPTED, viewer.stderr
    ended(desk, run, "stopped")


@pytest.mark.parametrize("held", ["validate"], indirect=True)
def test_status_and_stop_work_after_viewer_and_keeper_are_killed(held: Held) -> None:
    desk = held.desk
    viewer, run = held.launch()
    viewer.signal(signal.SIGKILL)
    viewer.wait()
    os.kill(desk.keeper(run), signal.SIGKILL)
    until("its agents are gone", lambda: not desk.agents())
    living = desk.task_pids(run)  # a preflight probe may still be ending with its agent
    status = desk.start("status", run)
    status.wait(BOUND)
    if living:
        assert "running" in status.stdout, status.stdout + status.stderr
    stop = desk.start("stop", run)
    assert stop.wait(BOUND) in (ExitStatus.OK, ExitStatus.CLUSTER), stop.stderr
    ended(desk, run, "stopped")


def ended(desk: Desk, run: str, outcome: str) -> None:
    """Check for one verdict and no live process; a third stop request does not wait for them."""
    until("the run has ended", lambda: desk.named("RunEnded", run))
    (event,) = desk.named("RunEnded", run)
    assert event["outcome"] == outcome, event
    desk.hosts_are_quiet(run)
    desk.is_traceback_free(run)
