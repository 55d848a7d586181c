"""What happened, as typed frozen past-tense facts: no prose for the terminal, no colour, no exceptions.

An event is stored as one JSON line: {"at": seconds since the epoch, "event": class name, ...fields}.
Every consumer matches on the class and ends with `assert_never`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeAlias, get_args

import msgspec


class Phase(StrEnum):
    CONNECT = "connect"
    PREFLIGHT = "preflight"
    STAGE = "stage"
    VALIDATE = "validate"
    LAUNCH = "launch"
    FOLLOW = "follow"
    STOP = "stop"


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Outcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"  # a user asked for it
    CLUSTER = "cluster"  # never started: a host, a check, the staging or the validation


class Kind(StrEnum):
    """What kind of failure the first cause of an attempt is."""

    NONE = ""
    START = "start"  # a phase before the tasks, or a task that could not be executed
    EXIT = "exit"
    SIGNAL = "signal"
    EXCEPTION = "exception"
    OUT_OF_MEMORY = "out-of-memory"
    RESOURCES = "resources"  # TensorFlow could not get what it asked for, a GPU's memory mostly
    DISK = "disk"
    PORT = "port"
    NAN = "nan"
    MISMATCH = "mismatch"  # the tasks do not run the same program, or on the same data
    PEER = "peer"  # a task that others say is gone, and that shows no failure of its own
    TIMEOUT = "time-out"  # tasks that waited for each other at the start
    INCARNATION = "incarnation"  # a task was started again alone
    HANG = "hang"
    LOST = "lost"  # its supervisor or guard was killed
    HOST_LOST = "host-lost"
    REBOOTED = "rebooted"
    BUG = "bug"


class Loss(StrEnum):
    """Why it is not known how a task ended, where that has a name."""

    NONE = ""
    RESTARTED = "restarted"  # its machine or container was
    UNREACHABLE = "unreachable"  # its host stays lost
    UNSTARTED = "unstarted"


@dataclass(frozen=True)
class RunPlanned:
    run: str
    name: str
    owner: str
    command: tuple[str, ...]
    tasks: tuple[tuple[str, str], ...]  # (task, host)
    notes: tuple[str, ...]
    folder: str


@dataclass(frozen=True)
class RunAdopted:
    """A keeper took over a run whose keeper was gone."""

    run: str
    by: str


@dataclass(frozen=True)
class RunLeft:
    """A keeper that wanted to take the run over could not: it goes on as it was."""

    run: str
    why: str
    hint: str = ""


@dataclass(frozen=True)
class Noted:
    """Something the user should know that is no failure: what was left out, what is very large."""

    text: str


@dataclass(frozen=True)
class PhaseStarted:
    phase: Phase
    hosts: int


@dataclass(frozen=True)
class PhaseEnded:
    phase: Phase
    ok: bool
    seconds: float


@dataclass(frozen=True)
class HostConnected:
    host: str
    seconds: float
    clock: float = 0.0  # seconds that its clock is ahead of ours


@dataclass(frozen=True)
class HostFailed:
    """A host cannot go on in this phase; worded as in `HostError`."""

    host: str
    phase: Phase
    kind: str
    what: str
    why: str
    hint: str


@dataclass(frozen=True)
class HostLost:
    """No word from the host: its tasks are *unknown*, not failed."""

    host: str
    why: str


@dataclass(frozen=True)
class HostRecovered:
    host: str
    seconds: float  # how long it was lost


@dataclass(frozen=True)
class CheckReported:
    host: str
    check: str  # a slug: login, python, tensorflow, rsync, state, workdir, disk, clock, port, ...
    level: Level
    found: str  # short: "3.11.2", "120 GB free"
    why: str = ""
    hint: str = ""


@dataclass(frozen=True)
class PairReported:
    """What `source` sees of `target`'s task port; ICMP is None where it could not be measured."""

    source: str
    target: str
    address: str  # address:port
    tcp: bool
    tcp_ms: float | None
    icmp: bool | None
    icmp_ms: float | None
    why: str = ""


@dataclass(frozen=True)
class TreeSynced:
    host: str
    digest: str
    files: int
    sent: int  # bytes that crossed the wire
    seconds: float
    reused: bool


@dataclass(frozen=True)
class HostValidated:
    host: str
    dataset: str
    loss: float
    steps_per_second: float
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class TaskStarted:
    task: str
    host: str
    attempt: str
    pid: int


@dataclass(frozen=True)
class TaskReady:
    task: str
    note: str


@dataclass(frozen=True)
class TaskProgressed:
    task: str
    step: int
    loss: float | None
    steps_per_second: float | None


@dataclass(frozen=True)
class TaskReported:
    """The task's own final words: `kind` is "result" or "error"."""

    task: str
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True)
class LogLine:
    """One whole display line of a task; `sent` is the node's time corrected by the clock offset."""

    task: str
    host: str
    text: str
    sent: float


@dataclass(frozen=True)
class LogGap:
    """Bytes that are missing on the node (disk full, cap), or lines that only the display dropped."""

    task: str
    where: str  # "node" or "display"
    count: int  # bytes on the node, lines in the display
    why: str


@dataclass(frozen=True)
class TaskExited:
    """Comes after the task's last byte; exactly one of code, signal and lost says how."""

    task: str
    host: str
    attempt: str
    code: int | None
    signal: int | None
    lost: str  # why the end is unknown; "" when it is known
    seconds: float
    ended: float  # node time, corrected
    stopped: bool  # it ended because it was told to
    note: str = ""  # what its supervisor has to say: what it was told by the machine, what was left behind
    loss: Loss = Loss.NONE
    oom_kills: int = 0  # of its processes, by the kernel for want of memory
    oom_limit: int | None = None  # bytes; None: no limit but the machine's memory


@dataclass(frozen=True)
class HangSuspected:
    """No task has printed or reported anything for so long, or these have stayed behind the others."""

    kind: str  # "silent" or "lagging"
    tasks: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class StacksTaken:
    """Where the tasks stand; the whole stacks are in `file`, within the run's folder."""

    odd: tuple[str, ...]  # the tasks that the others wait for, as far as one can see
    found: str  # one line: who hangs, where, and what the others do
    file: str
    missing: tuple[str, ...]  # hosts that gave none
    seconds: float  # that it took


@dataclass(frozen=True)
class HangPassed:
    """The tasks that seemed to hang were heard of again, or became unknown with their host."""

    seconds: float  # since the suspicion


@dataclass(frozen=True)
class AttemptFailed:
    """An attempt failed and another one follows; how it failed is worded as in RunEnded."""

    attempt: str
    cause: str
    cause_task: str
    last_lines: tuple[str, ...]
    hint: str
    pause: float  # seconds until the next attempt is prepared
    restart: int  # which one this is, from 1
    most: int  # how many are allowed
    kind: Kind = Kind.NONE
    cause_host: str = ""


@dataclass(frozen=True)
class HostReplaced:
    """A host that cannot be reached has no task any more; `by` is "" when nothing takes its place."""

    host: str
    by: str
    why: str


@dataclass(frozen=True)
class AttemptPlanned:
    """The tasks of a later attempt, and where they go."""

    attempt: str
    tasks: tuple[tuple[str, str], ...]  # (task, host)


@dataclass(frozen=True)
class StopRequested:
    by: str  # "user", "failure", "completion"
    why: str
    grace: float


@dataclass(frozen=True)
class RunEnded:
    run: str
    outcome: Outcome
    status: int
    seconds: float
    cause: str  # one line: who and why; "" on success
    cause_task: str  # "" when no task is to blame
    last_lines: tuple[str, ...]  # its last traceback where that ended it, else the end of its log
    folder: str
    hint: str = ""
    unproven: tuple[str, ...] = ()  # hosts that did not answer: whether anything is left there is unknown
    attempts: int = 1
    given_up: str = ""  # why no other attempt followed, where restarts were asked for
    kind: Kind = Kind.NONE
    cause_host: str = ""


Event: TypeAlias = (
    RunPlanned
    | RunAdopted
    | RunLeft
    | Noted
    | PhaseStarted
    | PhaseEnded
    | HostConnected
    | HostFailed
    | HostLost
    | HostRecovered
    | CheckReported
    | PairReported
    | TreeSynced
    | HostValidated
    | TaskStarted
    | TaskReady
    | TaskProgressed
    | TaskReported
    | LogLine
    | LogGap
    | TaskExited
    | HangSuspected
    | StacksTaken
    | HangPassed
    | AttemptFailed
    | HostReplaced
    | AttemptPlanned
    | StopRequested
    | RunEnded
)

_BY_NAME: dict[str, type[Event]] = {cls.__name__: cls for cls in get_args(Event)}


@dataclass(frozen=True)
class Stamped:
    """An event and when the controller learned of it (seconds since the epoch)."""

    at: float
    event: Event


def encode(stamped: Stamped) -> bytes:
    """One JSON line, without its newline."""
    event = stamped.event
    return msgspec.json.encode({"at": stamped.at, "event": type(event).__name__, **asdict(event)})


def decode(line: bytes) -> Stamped:
    """The inverse of `encode`; raise `msgspec.ValidationError` for anything else."""
    fields = msgspec.json.decode(line, type=dict[str, Any])
    at, name = fields.pop("at", None), fields.pop("event", None)
    if not isinstance(at, int | float) or name not in _BY_NAME:
        raise msgspec.ValidationError(f"not an event: {line[:80]!r}")
    return Stamped(float(at), msgspec.convert(fields, _BY_NAME[name]))
