"""One round: launch, strike, heal, wait for the end, and check everything."""

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.chaos import expected, invariants
from tests.chaos.faults import LinkCut, Scene
from tests.chaos.machine import SMALL, Machine
from tests.chaos.rounds import KINDS, Round
from tests.cluster.machines import Cluster, Node
from tests.ssh.runs.desk import Controller

T = TypeVar("T")

LIMIT = 150.0  # seconds for any step: a run that is not over by then hangs
_REAL = 3  # factor for TensorFlow: 4,000 steps have taken 160 s on a busy machine
_STUB = Path(__file__).parent / "stub_trainer.py"
# A hanging host is given up after 20 s, and awaited for 30 s at the end: most rounds have less time.
_IMPATIENT = {"silence": 3.0, "beat": 0.5, "stop_unreachable": 4.0, "stop_impatient": 3.0, "host_return": 6.0}
_HOST_TIMEOUT = 4  # seconds, for a host without a replacement
_LOCAL_STEPS = 100  # of a validation: 2 s, longer than the delay of any fault in it


@dataclass(frozen=True)
class Result:
    round: Round
    run: str
    struck: bool
    ended: str  # status, outcome, and cause, for the table
    seconds: float
    wrong: tuple[str, ...]


class StuckError(Exception):
    """An expected event did not happen in time."""


def play(round_: Round, cluster: Cluster, folder: Path) -> Result:
    """Play one round; remove its folder if nothing was wrong."""
    began = time.monotonic()
    names = (*round_.hosts, round_.spare) if round_.spare else round_.hosts
    machines = {name: _machine(cluster.node(name), round_) for name in names}
    with _controller(round_, folder) as controller:
        try:
            run, struck, wrong, ended = _play(round_, cluster, controller, machines)
        except (StuckError, subprocess.CalledProcessError) as stuck:
            # Docker on a busy machine may fail to freeze a container: the round fails, but others continue.
            problem = f"{stuck} {getattr(stuck, 'stderr', '')}".rstrip()
            run, struck, wrong, ended = controller.newest(), True, [problem], "stuck"
            controller.start("stop", "--now", run).wait(LIMIT)  # keeps the next round unaffected
        finally:
            for machine in machines.values():
                machine.start()
        if wrong:
            _keep(controller, machines, run)
    for machine in machines.values():
        machine.wipe()
    result = Result(round_, run, struck, ended, time.monotonic() - began, tuple(wrong))
    if not wrong:
        shutil.rmtree(folder)
    return result


def _machine(node: Node, round_: Round) -> Machine:
    small = round_.fault == "disk-full" and node.name == round_.hosts[round_.victim]
    return Machine(
        node, f"{SMALL}/state" if small else f"/var/tmp/orchestrate-{2002 if node.user == 'vera' else 2001}"
    )


@contextmanager
def _controller(round_: Round, folder: Path) -> Iterator[Controller]:
    controller = Controller(folder, timings={} if round_.patient else _IMPATIENT)
    shutil.copy(_STUB, controller.project / "train.py")
    with closing(controller):
        yield controller


def _play(
    round_: Round, cluster: Cluster, controller: Controller, machines: dict[str, Machine]
) -> tuple[str, bool, list[str], str]:
    victim, peer = (machines[round_.hosts[index]] for index in (round_.victim, round_.peer))
    if round_.moment == "away":
        victim.docker("kill")
    viewer = controller.start("launch", *_launch(round_, cluster, controller, victim))
    run = _wait("there is a run", controller.newest, lambda: viewer.process.poll() is not None)
    if not run:
        return "", False, [f"no run: {viewer.text}"], "-"
    spare = machines.get(round_.spare)
    scene = Scene(run, controller, machines, _machine(cluster.bastion, round_), victim, peer, viewer, spare)
    fault = KINDS[round_.fault].fault(scene)
    _reach(round_, scene)
    time.sleep(round_.later)
    began = time.monotonic()
    with fault.struck() as struck:
        _until_healed(round_, scene)
    # Data sent meanwhile (the close of a connection, for example) arrives when TCP retries: it waits twice
    # as long each time, so at most as long again as the cut was.
    cut = time.monotonic() - began if isinstance(fault, LinkCut) else 0.0
    limit = LIMIT if round_.trainer == "stub" else _REAL * LIMIT
    _wait("the viewer ends", lambda: viewer.process.poll() is not None, limit=limit)
    first = _end(controller, run)
    wrong = _judged(round_, first, viewer.wait(), viewer.text, struck=struck)
    for machine in machines.values():
        machine.start()
        _wait(f"sshd of {machine.name} listens", machine.answers)
    if first.get("unproven"):
        wrong += _finish(controller, run)
    killed = round_.fault == "keeper-kill"
    wrong += invariants.check(run, controller, machines, killed=killed, cut=cut)
    wrong += invariants.hosts_were_replaced(controller.events(run), expected.replaced(round_, struck=struck))
    if re.search("^Traceback", viewer.text, re.MULTILINE):
        wrong.append("the viewer printed a traceback")
    return run, struck, wrong, f"{first.get('status')} {first.get('outcome')} {first.get('cause')}"


def _launch(round_: Round, cluster: Cluster, controller: Controller, victim: Machine) -> list[str]:
    job = "\n[job]\ngrace = 2\n"
    if round_.least is not None or round_.spare:
        job += f"host_timeout = {_HOST_TIMEOUT}\n"
    if round_.examined:
        job += f'validate = "train.py --steps {_LOCAL_STEPS}"\n'
    names = (*round_.hosts, round_.spare) if round_.spare else round_.hosts
    path = cluster.hosts_file(controller.folder / "hosts.toml", names, job)
    if round_.spare:
        _set(path, round_.spare, "spare = true")
    if victim.state.startswith(SMALL):
        _set(path, victim.name, f'state = "{victim.state}"')
    words = ["--hosts", str(path)]
    if not round_.examined or victim.state.startswith(SMALL):  # such a small disk is refused
        words.append("--skip-preflight")
    if not round_.examined:
        words.append("--no-validate")
    if round_.least is not None:
        words += ["--min-hosts", str(round_.least)]
    words += ["--max-restarts", str(round_.restarts), "--"]
    if round_.trainer == "stub":
        stub = ["train.py", "--steps", str(round_.steps), "--heartbeat", str(round_.heartbeat)]
        return [*words, *stub, "--checkpoint-dir", "checkpoints"]
    steps = 40 if round_.steps < 1000 and round_.fault not in expected.LATE else 4000
    return [*words, "--dataset", "digits", "--epochs", "1", "--steps-per-epoch", str(steps)]


def _set(path: Path, host: str, line: str) -> None:
    """Add a line to a host's entry."""
    mark = f'name = "{host}"\n'
    path.write_text(path.read_text().replace(mark, f"{mark}{line}\n"))


def _reach(round_: Round, scene: Scene) -> None:
    """Wait for the round's moment or for the run's end."""
    task = f"worker/{round_.victim}"

    def come() -> bool:
        if round_.moment == "away":
            return True
        for event in scene.controller.events(scene.run):
            match event["event"], round_.moment:
                case ("RunEnded", _):
                    return True
                case ("PhaseStarted", moment) if event["phase"] == moment:
                    return True
                case ("TaskStarted", "start") if event["task"] == task:
                    return True
                case ("TaskProgressed", "train") if event["step"] >= round_.step:
                    return True
                case _:
                    pass
        return False

    _wait(f"the run reaches its {round_.moment}", come)


def _attempt_steps(scene: Scene) -> bool:
    """Return whether a later attempt has made a step."""
    events = scene.controller.events(scene.run)
    begun = next((n for n, event in enumerate(events) if event["event"] == "AttemptPlanned"), len(events))
    return any(event["event"] == "TaskProgressed" for event in events[begun:])


def _until_healed(round_: Round, scene: Scene) -> None:
    viewer = scene.viewer
    if round_.seconds is not None:
        deadline = time.monotonic() + round_.seconds
        while time.monotonic() < deadline and viewer.process.poll() is None:
            time.sleep(0.02)
        return
    if round_.fault in expected.LATE:
        _wait("the spare trains", lambda: _attempt_steps(scene) or viewer.process.poll() is not None)
        return
    _wait(f"the run ends after {round_.fault}", lambda: viewer.process.poll() is not None)


def _wait(
    what: str, look: Callable[[], T], over: Callable[[], bool] = lambda: False, limit: float = LIMIT
) -> T:
    deadline = time.monotonic() + limit
    while not (found := look()):
        if over():
            return look()
        if time.monotonic() > deadline:
            raise StuckError(f"not within {limit:.0f} s: {what}")
        time.sleep(0.02)
    return found


def _end(controller: Controller, run: str) -> dict[str, Any]:
    return next((e for e in reversed(controller.events(run)) if e["event"] == "RunEnded"), {})


def _judged(round_: Round, ended: dict[str, Any], status: int, said: str, *, struck: bool) -> list[str]:
    if not ended:
        return [f"no RunEnded; the viewer ended with {status}: {said[-400:]}"]
    wrong = []
    if ended["status"] != status:
        wrong.append(f"the viewer ended with {status}, the run with {ended['status']}")
    if struck and round_.fault in expected.LATE and ended["attempts"] != expected.LATE_ATTEMPTS:
        wrong.append(f"whoever came back cost a restart: {ended['attempts']} attempts")
    right = expected.endings(round_, struck=struck)
    if not any(expected.fits(ending, round_, ended) for ending in right):
        named = (ended[name] for name in ("status", "outcome", "cause", "cause_task", "kind"))
        found = expected.Ending(*named)
        wrong.append(f"ended as {found}; right is {' or '.join(map(str, right))}")
    return wrong


def _finish(controller: Controller, run: str) -> list[str]:
    """Follow the run's last message: `orchestrate stop` once the host responds again."""
    deadline = time.monotonic() + LIMIT
    while True:
        stop = controller.start("stop", run)
        status = stop.wait(LIMIT)
        if status != 3 or time.monotonic() > deadline:  # 3: it does not respond yet
            return (
                []
                if status in (0, 1)
                else [f"stop of what was unproven ended with {status}: {stop.text[-300:]}"]
            )


def _keep(controller: Controller, machines: dict[str, Machine], run: str) -> None:
    """Save the nodes' records of a failed round next to the controller's."""
    for name, machine in machines.items():
        source = machine.inside(f"{machine.state}/runs/{run}")
        if run and source.is_dir():
            skip = shutil.ignore_patterns("control", "lock")
            shutil.copytree(source, controller.folder / "nodes" / name, ignore=skip, dirs_exist_ok=True)
