"""The keeper outlives viewers; if it is killed, the run continues and another keeper takes over."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from msgspec.structs import replace

from orchestrator.errors import ExitStatus
from orchestrator.model import Host, Role
from orchestrator.rehearsal import Cluster
from tests.ssh.runs.desk import HOSTILE, Desk, Viewer, until
from tests.ssh.runs.keeper_kills import Soak, draw
from tests.training import training_python

# Counts until a file tells it to end.
COUNTING = """
import os, sys, time
n = 0
while not os.path.exists(sys.argv[1]):
    n += 1
    print("line", n, flush=True)
    time.sleep(0.02)
print("enough", flush=True)
"""


def counting(desk: Desk) -> tuple[str, ...]:
    desk.script("t.py", COUNTING)
    return ("--", "t.py", str(desk.folder / "enough"))


def let_it_end(desk: Desk) -> None:
    (desk.folder / "enough").touch()


def test_a_closed_terminal_changes_nothing(desk: Desk) -> None:
    viewer, run = desk.begin(*counting(desk))
    viewer.shows("line 5")
    viewer.signal(signal.SIGHUP)
    viewer.wait()
    let_it_end(desk)
    tail = desk.start("tail", run, "-n", "all").ended()
    assert tail.stdout.count("enough") == 2


def test_two_runs_at_once_on_the_same_hosts(desk: Desk) -> None:
    first, run = desk.begin(*counting(desk))
    first.shows("line 5")
    second = desk.launch("--", "true").ended(ExitStatus.CLUSTER)
    assert run in second.stdout + second.stderr
    assert "@" in second.stdout + second.stderr
    third = desk.launch("--other-ports", "--", "sh", "-c", 'echo "$TF_CONFIG"').ended()
    assert f":{desk.cluster.hosts[0].task_port}" not in third.stdout
    let_it_end(desk)
    assert first.wait() == ExitStatus.OK, first.stderr


# --- Without a keeper, endless tasks end after the lifeline, and healthy training continues ---

LIFELINE = 3  # seconds
SLEEP = "import time; print('up', flush=True); time.sleep(600)\n"


def unkept(desk: Desk, hosts: list[Host], count: int) -> str:
    """Launch a run with a short lifeline, and kill its keeper."""
    desk.script("t.py", SLEEP)
    desk.write_hosts(hosts, job=f"[job]\ngrace = 1\nlifeline = {LIFELINE}")
    run = desk.detached("--", "t.py")
    until("all run", lambda: len(desk.task_pids(run)) == count)
    until("all are followed", lambda: any(e["phase"] == "follow" for e in desk.named("PhaseStarted", run)))
    if Role.PS in {host.role for host in hosts}:
        followed = time.monotonic()
        until("a lifeline is over under a keeper", lambda: time.monotonic() > followed + LIFELINE + 1)
        assert len(desk.task_pids(run)) == count
    os.kill(desk.keeper(run), signal.SIGKILL)
    return run


def test_parameter_servers_and_workers_end_while_a_chief_continues(four: Desk) -> None:
    roles = (Role.CHIEF, Role.WORKER, Role.PS)
    hosts = [replace(host, role=role) for host, role in zip(four.cluster.hosts, roles, strict=False)]
    run = unkept(four, hosts, 3)
    until("the others have ended", lambda: not any(four.machinery_of(run, host) for host in hosts[1:]))
    assert len(four.task_pids(run)) == 1
    (chief,) = four.task_pids(run, "chief/0")
    status = four.start("status", run).ended()
    assert status.stdout.count("killed by SIGTERM") == 2
    os.kill(chief, signal.SIGTERM)
    four.start("tail", run).ended(ExitStatus.RUN_FAILED)
    four.nothing_is_left(run)


# --- A few rounds of scripts/soak-keeper: a seed selects a moment, a trainer, and what follows ---

# Stopped from another machine, followed from all, and killed twice; test_every_phase.py has the rest.
SEEDS = (48, 47, 39)


@pytest.fixture(scope="module")
def soak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soak]:
    with Cluster(3) as cluster, closing(Desk(cluster, tmp_path_factory.mktemp("soak") / HOSTILE)) as desk:
        yield Soak(desk, training_python())


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_left_by_a_keeper_killed_at_any_moment_can_be_seen_and_ended(
    soak: Soak, seed: int
) -> None:
    soak.round(draw(seed))


# --- Several viewers, viewers on other machines, and viewers with broken output ---


def both_count(desk: Desk) -> tuple[Viewer, str]:
    desk.write_hosts(desk.cluster.hosts, job="[job]\ngrace = 1")
    viewer, run = desk.begin(*counting(desk))
    until("both run", lambda: len(desk.task_pids(run)) == 2)
    return viewer, run


def test_a_run_with_a_keeper_elsewhere_is_shown_and_stopped_but_not_taken_over(desk: Desk) -> None:
    launch, run = both_count(desk)
    desk.timings = {"handover": 0.5}
    keeper = desk.keeper()
    with desk.elsewhere():
        tail = desk.start("tail", run, "--hosts", str(desk.hosts)).ended(ExitStatus.CLUSTER)
        assert f"pid {keeper}, as " in tail.stderr
        assert tail.stderr.count("error:") == 1, tail.stderr
        assert not desk.named("RunEnded", run)
        status = desk.start("status", run, "--hosts", str(desk.hosts)).ended()
        assert f"run {run}: running, kept by " in status.stdout
        assert f"pid {keeper}" in status.stdout
        desk.start("stop", run, "--hosts", str(desk.hosts)).ended()
        assert desk.named("RunEnded", run)[0]["outcome"] == "stopped"
    assert launch.wait() == ExitStatus.INTERRUPTED, launch.stderr
    (ended,) = desk.named("RunEnded", run)
    assert ended["outcome"] == "stopped"
    desk.nothing_is_left(run)
    desk.logs_are_identical(run)
    desk.is_traceback_free(run)


def test_a_second_stop_and_a_stop_of_a_finished_run(desk: Desk) -> None:
    launch, run = both_count(desk)
    stops = [desk.start("stop", run), desk.start("stop", "--now")]
    assert [stop.wait() for stop in stops] == [ExitStatus.OK, ExitStatus.OK]
    assert launch.wait() == ExitStatus.INTERRUPTED
    again = desk.start("stop", run).ended()
    gone = desk.cluster.ssh_config.rename(desk.folder / "gone")
    status = desk.start("status", run).ended()  # a finished run needs no host
    assert "unknown" not in status.stdout
    gone.rename(desk.cluster.ssh_config)
    assert "has already ended" in again.stderr
    stopped = desk.start("stop", run, "--json").ended()
    assert json.loads(stopped.stdout) == desk.named("RunEnded", run)[-1]
    assert len(desk.named("RunEnded", run)) == 1


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import itertools\nfor n in itertools.count(): print('ready', n, flush=True)", ()),
        ("import time\nprint('ready', flush=True)\ntime.sleep(600)\n", ()),  # nothing more is printed
        ("import time\nprint('ready', flush=True)\ntime.sleep(600)\n", ("--json",)),
    ],
)
def test_the_run_continues_without_its_reader(desk: Desk, program: str, words: tuple[str, ...]) -> None:
    viewer = desk.launch(*words, "--", desk.script("t.py", program), shell='"$@" | grep -m 2 ready').ended()
    run = desk.run_id()
    assert f"run {run} continues" in viewer.stderr
    assert "a bug in orchestrate" not in viewer.stderr
    until("both run", lambda: len(desk.task_pids(run)) == 2)
    desk.start("stop", "--now", run).ended()
