"""The contents of a round, determined by its seed alone. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.chaos import faults

NODES = ("node1", "node2", "node3", "node4", "node5", "node6")
EVENTS = ("connect", "stage", "launch", "start", "train")  # when a fault strikes

_EARLY = ("connect", "preflight", "stage", "validate", "launch")
_TASK = ("start", "train")
_LOST = ("launch", "start", "train", "train")  # when a later attempt no longer needs the host
_AWAY = ("away",)  # before the launch
_CHECKS = ("preflight", "validate")
_ENDLESS = 1_000_000  # steps
_SURVIVES = 150
_LONG = 700  # it continues for a while after the lost host has returned


@dataclass(frozen=True)
class Kind:
    """The use of a fault: its moment, its duration, and the training."""

    fault: type[faults.Fault]
    moments: tuple[str, ...] = (*EVENTS, "train", "train", "train")
    seconds: tuple[float, float] | None = None  # until it is healed; None: the run's end heals it
    early: tuple[float, float] | None = None  # the same before the training, when fewer faults are survived
    steps: int = _ENDLESS  # of training that ends by itself: far longer than the fault
    early_steps: int = _ENDLESS  # the same, if a fault before the training may be survived
    heartbeat: float = 30.0  # seconds for which peers tolerate a silent task
    patient: bool = False  # the real timeouts of waiting for a host
    on_tensorflow: bool = False
    restarts: bool = False  # allowed in some rounds, which then survive
    always: bool = False  # allowed in every round
    spare: bool = False  # an additional host without a task
    fewer: int | None = None  # hosts that the run can continue without (--min-hosts); None: not set
    examined: float = 0.0  # fraction of rounds with preflight and local validation
    later: float = 0.4  # seconds after the moment, at most


KINDS = {
    "task-kill": Kind(faults.TaskKilled, moments=_TASK, on_tensorflow=True, restarts=True),
    "oom": Kind(faults.OutOfMemory, moments=("train",), restarts=True),
    "supervisor-kill": Kind(faults.SupervisorKilled, moments=_TASK, on_tensorflow=True, restarts=True),
    "guard-kill": Kind(faults.GuardKilled, steps=_SURVIVES, on_tensorflow=True),
    "agent-kill": Kind(faults.AgentKilled, steps=_SURVIVES, on_tensorflow=True),
    "sshd-kill": Kind(faults.SshdKilled, steps=_SURVIVES, on_tensorflow=True),
    "keeper-kill": Kind(faults.KeeperKilled, steps=_SURVIVES, on_tensorflow=True),
    "pause": Kind(faults.Paused, seconds=(0.5, 4.0), early=(0.3, 2.0), steps=_SURVIVES, on_tensorflow=True),
    "pause-long": Kind(faults.Paused, heartbeat=2.0),
    "node-stop": Kind(faults.Stopped, heartbeat=2.0, on_tensorflow=True),
    "node-restart": Kind(faults.Restarted, heartbeat=2.0, early_steps=_SURVIVES, restarts=True),
    "link-cut": Kind(faults.LinkCut, seconds=(0.5, 6.0), early=(0.3, 1.5), steps=_SURVIVES),
    "link-cut-long": Kind(faults.LinkCut, heartbeat=2.0),
    "slow": Kind(faults.Slow, steps=_SURVIVES, patient=True),
    "lossy": Kind(faults.Lossy, steps=_SURVIVES, patient=True),
    "pair-cut": Kind(faults.PairCut, seconds=(0.5, 3.0), steps=_SURVIVES),
    "pair-cut-long": Kind(faults.PairCut, heartbeat=2.0),
    "split": Kind(faults.Split, seconds=(0.5, 3.0), steps=_SURVIVES),
    "split-long": Kind(faults.Split, _TASK, heartbeat=5.0),  # rules for all machines take a while
    "keeper-cut": Kind(faults.KeeperCut, seconds=(0.5, 6.0), early=(0.3, 1.5), steps=_SURVIVES),
    "disk-full": Kind(
        faults.NodeDiskFull, moments=("stage", "launch", "start", "train", "train"), steps=_SURVIVES
    ),
    "none": Kind(faults.Fault, moments=("train",), steps=60, on_tensorflow=True),
    "spare-stop": Kind(
        faults.Stopped, _LOST, steps=_SURVIVES, heartbeat=2.0, always=True, spare=True, examined=0.5
    ),
    "spare-cut": Kind(
        faults.LinkCut, _LOST, steps=_SURVIVES, heartbeat=2.0, always=True, spare=True, examined=0.5
    ),
    "spare-gone": Kind(
        faults.SpareGone, _LOST, steps=_SURVIVES, heartbeat=2.0, always=True, spare=True, fewer=1
    ),
    # Frozen until the spare trains; then it returns with its old tasks.
    "spare-back": Kind(
        faults.Paused, ("train",), steps=_LONG, heartbeat=2.0, always=True, spare=True, on_tensorflow=True
    ),
    # Its old tasks have continued alone meanwhile.
    "spare-rejoin": Kind(faults.LinkCut, ("train",), steps=_LONG, heartbeat=2.0, always=True, spare=True),
    "fewer-stop": Kind(faults.Stopped, _LOST, steps=_SURVIVES, heartbeat=2.0, always=True, fewer=1),
    "fewer-cut": Kind(faults.LinkCut, _LOST, steps=_SURVIVES, heartbeat=2.0, always=True, fewer=1),
    # The run may continue with fewer hosts, but not with so few.
    "too-few": Kind(faults.Stopped, _TASK, heartbeat=2.0, always=True, fewer=0),
    # Powered off before the launch, by the round.
    "spare-away": Kind(faults.Fault, _AWAY, steps=_SURVIVES, always=True, spare=True, examined=0.5),
    "fewer-away": Kind(faults.Fault, _AWAY, steps=_SURVIVES, always=True, fewer=1),
    "check-stop": Kind(faults.Stopped, _CHECKS, steps=60, examined=1.0, later=1.2),
    "check-cut": Kind(faults.LinkCut, _CHECKS, steps=60, examined=1.0, later=1.2),
}


@dataclass(frozen=True)
class Round:
    seed: int
    fault: str
    trainer: str  # "stub" or "tensorflow"
    hosts: tuple[str, ...]
    victim: int  # task index, and the index of its host in `hosts`
    peer: int
    moment: str
    step: int  # of the training, at which the fault strikes
    later: float  # seconds after the moment
    seconds: float | None  # until it is healed
    steps: int
    heartbeat: float
    patient: bool
    restarts: int  # restarts allowed
    spare: str = ""
    least: int | None = None  # hosts, to continue with fewer
    examined: bool = False  # with preflight and local validation

    @property
    def early(self) -> bool:
        return self.moment in _EARLY

    def __str__(self) -> str:
        when = f"step {self.step}" if self.moment == "train" else self.moment
        healed = "" if self.seconds is None else f" for {self.seconds:.1f} s"
        who = f"{self.fault} {self.hosts[self.victim]}" + (", restarts" if self.restarts else "")
        if self.spare:
            who += f", spare {self.spare}"
        if self.least:
            who += f", at least {self.least}"
        if self.examined and self.restarts:
            who += ", examined"
        return f"{who} at {when}+{self.later:.2f} s{healed}, {self.trainer} on {len(self.hosts)}"


def plan(seed: int, names: Sequence[str], tensorflow: int = 6) -> Round:
    """Return the round of a seed: faults in turn, everything else at random.

    One in `tensorflow` rounds trains with TensorFlow, if the fault has the same effect there.
    """
    chance = random.Random(seed)
    fault = names[seed % len(names)]
    kind = KINDS[fault]
    real = kind.on_tensorflow and bool(tensorflow) and chance.randrange(tensorflow) == 0
    count = 2 if real else chance.randint(2, 5)
    hosts = tuple(sorted(chance.sample(NODES, count)))
    victim, peer = chance.sample(range(count), 2)
    moment = "train" if real else chance.choice(kind.moments)
    again = kind.restarts and not real and moment not in _EARLY and chance.random() < 0.4
    again = again or kind.always
    span = kind.early if moment in _EARLY and kind.early else kind.seconds
    drawn = Round(
        seed=seed,
        fault=fault,
        trainer="tensorflow" if real else "stub",
        hosts=hosts,
        victim=victim,
        peer=peer,
        moment=moment,
        step=chance.randint(1, 6 if real else 40),
        later=chance.choice((0.0, chance.uniform(0.0, kind.later))),
        seconds=chance.uniform(*span) if span else None,
        restarts=3 if again else 0,
        steps=_steps(kind, again=again, early=moment in _EARLY),
        heartbeat=kind.heartbeat,
        patient=kind.patient or chance.random() < 0.06,
    )
    # Drawn last and only for these faults, so that the rounds of others do not change.
    return replace(
        drawn,
        spare=chance.choice([node for node in NODES if node not in hosts]) if kind.spare else "",
        least=None if kind.fewer is None else count - kind.fewer,
        examined=bool(kind.examined) and chance.random() < kind.examined,
    )


def _steps(kind: Kind, *, again: bool, early: bool) -> int:
    if again:
        return _SURVIVES if kind.steps == _ENDLESS else kind.steps
    return min(kind.steps, kind.early_steps) if early else kind.steps
