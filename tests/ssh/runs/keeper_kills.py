"""Launches whose keeper is killed at a random moment, and the invariants that must hold afterwards."""

import contextlib
import json
import random
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ExitStatus
from tests.processes import cookies, is_gone, openers, send
from tests.ssh.runs.desk import Desk, Viewer, until

# Behaves like training: has a child, prints, may ignore TERM, and ends by itself.
STUB = """
import os, signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
n = 0
while n < int(sys.argv[1]) or not os.path.exists(sys.argv[2]):
    n += 1
    print("step", n, flush=True)
    time.sleep(0.02)
child.kill()
child.wait()
print("done", flush=True)
"""
JOB = "[job]\ngrace = 0.5\nfailure_grace = 0.2\nvalidate = 'sleep 0.2'\n"

STEPS = 40  # minimum duration of a trainer

# The action after the keeper's death. `launch` is still watching only in "watched".
WAYS = (
    *("watched", "tail", "two tails", "tail killed too", "tail elsewhere", "tails everywhere"),
    *("stop", "stop now", "stop elsewhere"),
)
# Half of the kills hit short phases; a phase that a launch skips is never waited for.
AIMS = ("",) * 6 + ("connect", "preflight", "stage", "validate", "launch", "follow")


@dataclass(frozen=True)
class Kill:
    """One round, drawn from its seed alone."""

    seed: int
    way: str
    deaf: bool
    fast: bool  # without preflight and validation
    held: bool  # the tasks continue until another keeper takes over
    aim: str  # the phase in which it is killed, shortly after its start; "": at any time
    moment: float  # fraction of the launch, 0 to 1; with an aim, of the first 0.2 s
    second: float  # seconds after which the next keeper is killed, in "tail killed too"


@dataclass(frozen=True)
class Outcome:
    kill: Kill
    seconds: float  # from the keeper's start to its kill
    phase: str  # the run's phase at that moment
    alive: int  # processes of the run that survived
    came_to: str


def draw(seed: int) -> Kill:
    chance = random.Random(seed)
    way = chance.choice(WAYS)
    return Kill(
        seed,
        way,
        deaf=chance.random() < 0.5,
        fast=chance.random() < 0.4,
        held=chance.random() < 0.6 or way.startswith("stop"),
        aim=chance.choice(AIMS),
        moment=chance.random(),
        second=chance.random(),
    )


class Soak:
    """Rounds on one desk; the usual duration of a launch is measured first."""

    def __init__(self, desk: Desk, python: str) -> None:
        """`python` must have TensorFlow, since preflight requires it."""
        self._desk = desk
        self._lives: dict[bool, float] = {}
        desk.script("t.py", STUB)
        desk.write_hosts(desk.cluster.hosts, job=JOB, python=python)

    def life(self, *, fast: bool) -> float:
        """Measure the seconds of an undisturbed launch."""
        if fast not in self._lives:
            desk = self._desk
            desk.script("round.py", f"# {fast}\n")
            before = set(_names(desk))  # from earlier rounds
            viewer = desk.launch("--", "t.py", str(STEPS), "/", fast=fast)
            assert viewer.wait() == ExitStatus.OK, viewer.stderr
            (run,) = set(_names(desk)) - before
            self._lives[fast] = float(desk.named("RunEnded", run)[0]["seconds"])
            desk.nothing_is_left(run)
        return self._lives[fast]

    def round(self, kill: Kill) -> Outcome:
        """Launch, kill, and check that nothing is lost; raise AssertionError for any problem."""
        desk, moment = self._desk, kill.moment * self.life(fast=kill.fast) * 1.05
        desk.script("round.py", f"# {kill.seed}\n")  # a new tree, so that it is really staged
        before = set(_names(desk))
        enough = desk.folder / f"enough-{kill.seed}-{time.monotonic_ns()}"
        until_when = str(enough) if kill.held else "/"
        words = ("--", "t.py", str(STEPS), until_when, *(["deaf"] if kill.deaf else []))
        watched = kill.way == "watched"
        viewer = desk.launch(*([] if watched else ["--detach"]), *words, fast=kill.fast)
        with _always_ended(desk):
            run = until("there is a run", lambda: next(iter(set(_names(desk)) - before), None))
            until("it has a keeper", lambda: _keepers(desk, run, viewer) or desk.named("RunEnded", run))
            began = time.monotonic()
            if kill.aim and not (kill.fast and kill.aim in {"preflight", "validate"}):
                until("its phase", lambda: _phase(desk, run, kill.aim) or desk.named("RunEnded", run))
                time.sleep(kill.moment * 0.2)
            else:
                time.sleep(moment)
            killed = _kill_keepers(desk, run, viewer)
            took = time.monotonic() - began
            if not watched:
                viewer.wait()
            until("the keeper is gone", lambda: all(map(is_gone, killed)))
            phases = [event["phase"] for event in desk.named("PhaseStarted", run)]
            living = 0 if watched else self._shown(run)
            self._finish(kill, run, viewer, enough)
            came_to = self._proven(kill, run)
        return Outcome(kill, took, (phases or ["before"])[-1], living, came_to)

    def _shown(self, run: str) -> int:
        """Check that `status` lists every surviving process of the run; return their number."""
        desk = self._desk
        before = _tasks_alive(desk, run)
        status = desk.start("status", run, "--json")
        assert status.wait() == ExitStatus.OK, status.stderr
        after = _tasks_alive(desk, run)
        exits = {
            ("validate" if task["attempt"] is None else str(task["attempt"]), task["task"])
            for task in json.loads(status.stdout)["tasks"]
            if task["state"] in {"starting", "running", "stopping"}
        }
        hidden = (before & after) - exits
        assert not hidden, f"alive, and not in status: {hidden}: {status.stdout}"
        return len(desk.task_pids(run))

    def _finish(self, kill: Kill, run: str, viewer: Viewer, enough: Path) -> None:
        """Do what a user would, and check that the output is true."""
        desk, hosts = self._desk, ("--hosts", str(self._desk.hosts))
        followed = (ExitStatus.OK, ExitStatus.RUN_FAILED)

        def adopted(*tails: Viewer) -> None:
            """Let the tasks end once they have a keeper again."""
            until(
                "the run has a keeper, or an end",
                lambda: (
                    desk.named("RunAdopted", run)
                    or desk.named("RunEnded", run)
                    or all(tail.process.poll() is not None for tail in tails)
                ),
            )
            enough.touch()

        match kill.way:
            case "watched":
                adopted(viewer)
                _is_one_of(viewer, *followed)
            case "tail":
                tail = desk.start("tail", run)
                adopted(tail)
                _is_one_of(tail, *followed)
            case "tail killed too":
                tail = desk.start("tail", run)
                time.sleep(kill.second)
                tail.signal(signal.SIGKILL)
                tail.wait()
                _kill_keepers(desk, run, tail)
                tail = desk.start("tail", run)
                enough.touch()
                _is_one_of(tail, *followed)
            case "two tails":
                tails = [desk.start("tail", run) for _ in range(2)]
                adopted(*tails)
                statuses = {_is_one_of(tail, *followed) for tail in tails}
                assert len(statuses) == 1, f"two viewers, two ends: {statuses}"
            case "tails everywhere":
                here = desk.start("tail", run)
                with desk.elsewhere():
                    there = desk.start("tail", run, *hosts)
                adopted(here, there)
                _is_one_of(here, *followed, ExitStatus.CLUSTER)
                _is_one_of(there, *followed, ExitStatus.CLUSTER, ExitStatus.USAGE)
                if here.process.returncode == ExitStatus.CLUSTER:  # exactly one of them
                    assert there.process.returncode in followed, here.stderr + there.stderr
                    _is_one_of(desk.start("tail", run), *followed)
            case "stop":
                _is_one_of(desk.start("stop", run), ExitStatus.OK)
            case "stop now":
                _is_one_of(desk.start("stop", run, "--now"), ExitStatus.OK)
            case "tail elsewhere" | "stop elsewhere":
                with desk.elsewhere():
                    there = desk.start(kill.way.split()[0], run, *hosts)
                    if kill.way.startswith("tail"):
                        enough.touch()
                    _is_one_of(there, *followed, ExitStatus.USAGE, ExitStatus.CLUSTER)
                if there.process.returncode not in followed:  # no node, or not every node, had received it
                    assert re.search("there is no run|ha(s|ve) no record of it", there.stderr), there.stderr
                    assert not desk.task_pids(run), "alive, and not to be found from elsewhere"
                # On its own machine the run must still be followed to its end.
                _is_one_of(desk.start("tail", run), *followed, ExitStatus.INTERRUPTED)

    def _proven(self, kill: Kill, run: str) -> str:
        """Check that one end is reported, nothing is alive, and logs match the nodes'; return the outcome."""
        desk = self._desk
        desk.hosts_are_quiet(run)
        (ended,) = desk.named("RunEnded", run)
        debug = desk.run_folder(run) / "debug.log"
        assert "Traceback" not in (debug.read_text() if debug.exists() else ""), debug.read_text()
        for host, slug in zip(desk.cluster.hosts, ("worker-0", "worker-1", "worker-2"), strict=False):
            theirs = desk.node_log(host, run, slug)
            ours = desk.run_folder(run) / "logs" / "1" / f"{slug}.log"
            have = ours.read_bytes() if ours.exists() else b""
            output = theirs.read_bytes() if theirs.exists() else b""
            assert output.startswith(have), f"{slug}: the log is not the node's"
            if ended["outcome"] == "succeeded":
                assert have == output, f"{slug}: {len(have)} of {len(output)} bytes"
                assert have.endswith(b"done\n"), have[-100:]
        if kill.way.startswith("stop"):
            assert ended["outcome"] in {"stopped", "cluster"}, ended
        return str(ended["outcome"])


def _is_one_of(viewer: Viewer, *statuses: ExitStatus) -> int:
    status = viewer.wait()
    assert status in statuses, f"exit {status}:\n{viewer.stdout}\n{viewer.stderr}"
    assert "a bug in" not in viewer.stderr, viewer.stderr
    return status


def _names(desk: Desk) -> list[str]:
    return sorted(path.name for path in desk._runs())


def _keepers(desk: Desk, run: str, viewer: Viewer) -> list[int]:
    """Return processes other than viewers with the keeper's lock open: keepers, even one just starting."""
    return list(openers(desk.run_folder(run) / "keeper.lock", viewer.process.pid))


def _kill_keepers(desk: Desk, run: str, viewer: Viewer) -> list[int]:
    return send(signal.SIGKILL, _keepers(desk, run, viewer))


def _phase(desk: Desk, run: str, phase: str) -> bool:
    return any(event["phase"] == phase for event in desk.named("PhaseStarted", run))


def _tasks_alive(desk: Desk, run: str) -> set[tuple[str, str]]:
    """Return (attempt, task) of every process with the run's cookie."""
    found = set()
    for pid in desk.task_pids(run):
        for cookie in cookies(pid):
            _, attempt, role, index, _ = cookie.split("/")
            found.add((attempt, f"{role}/{index}"))
    return found


@contextlib.contextmanager
def _always_ended(desk: Desk) -> Iterator[None]:
    """End the tasks even after a failure, so that the next round finds the ports free."""
    try:
        yield
    except BaseException:
        for run in _names(desk):
            send(signal.SIGKILL, (*desk.task_pids(run), *desk.machinery(run)))
        for viewer in desk._viewers:
            if viewer.process.poll() is None:
                viewer.process.kill()
        raise
