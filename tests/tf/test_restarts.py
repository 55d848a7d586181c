"""A training that is interrupted, loses a machine, and ends as if nothing had happened."""

import os
import random
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.errors import ExitStatus
from tests.ssh.runs.desk import Desk, kill_all, until
from tests.tf.gang import Gang, words, worker_entry

LIMIT = 150.0  # seconds
STEPS = 120
TRAINING = words(f"--dataset digits --deterministic --epochs 4 --steps-per-epoch {STEPS // 4}")
SAVING = words("--checkpoint-dir checkpoints --save-every 8")
FAST = {"pauses": [0.05], "host_return": 1.0}


@pytest.fixture
def desk(three: Desk) -> Desk:
    """Two hosts that train, and a spare one; no folder is shared."""
    hosts = [replace(host, spare=number == 2) for number, host in enumerate(three.cluster.hosts)]
    three.write_hosts(hosts, job="[job]\nhost_timeout = 2\n")
    return three


def results(desk: Desk, run: str) -> list[dict[str, Any]]:
    return [event["data"] for event in desk.named("TaskReported", run) if event["kind"] == "result"]


def saved(desk: Desk, run: str, number: int, slug: str) -> int:
    """The newest step that a task has saved."""
    folder = desk.node_work(desk.cluster.hosts[number], run) / "checkpoints" / slug
    found = [re.fullmatch(r"step-(\d+)\.index", path.name) for path in folder.glob("*.index")]
    return max((int(match[1]) for match in found if match), default=0)


@pytest.mark.soak
def test_an_interrupted_training_ends_with_the_weights_of_one_that_was_not(
    desk: Desk, tmp_path: Path
) -> None:
    """A task is killed, then the first machine is lost: the spare gets the checkpoint from the other one."""
    with Gang(tmp_path / "undisturbed", worker_entry(*TRAINING), jobs={"worker": 2}) as whole:
        (expected,) = {result["digest"] for result in whole.finish()}

    desk.timings = FAST
    moment = random.Random()
    viewer, run = desk.begin("--max-restarts", "2", "--", *TRAINING, *SAVING)
    at = moment.randrange(8, STEPS // 4)
    until("it has saved", lambda: saved(desk, run, 1, "worker-1") >= at, LIMIT)
    (victim,) = desk.task_pids(run, "worker/1")
    os.kill(victim, signal.SIGKILL)
    viewer.shows("attempt 2: 2 tasks on 2 hosts")
    at = moment.randrange(STEPS // 4 + 16, STEPS // 2)
    until("it has saved more", lambda: saved(desk, run, 1, "worker-1") >= at, LIMIT)
    lost = desk.cluster.hosts[0]
    desk.kill_sshd(desk.cluster.servers[0])
    kill_all([*desk.machinery_of(run, lost), *desk.task_pids(run, "worker/0")])
    assert viewer.wait(LIMIT) == ExitStatus.OK, viewer.stdout + viewer.stderr
    assert f"{lost.name}: cannot be reached; {desk.cluster.hosts[2].name} takes its place" in viewer.stderr
    found = results(desk, run)
    assert [(result["digest"], result["steps"]) for result in found] == [(expected, STEPS)] * 2
    assert desk.named("RunEnded", run)[0]["attempts"] == 3
    began = [_first_step(desk, run, attempt) for attempt in ("1", "2", "3")]
    assert began == sorted(set(began)), began


def _first_step(desk: Desk, run: str, attempt: str) -> int:
    text = (desk.run_folder(run) / "logs" / attempt / "worker-1.log").read_text()
    found = re.search(r"continues at step (\d+)", text)
    return int(found[1]) if found else 1
