"""Facts of a run, typed, frozen and in the past tense: no prose for the terminal, no colour, no exceptions.

Every consumer matches on the class and ends with `assert_never`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, TypeAlias, dataclass_transform

import msgspec
from msgspec import Meta, Struct

from orchestrator.names import AttemptName
from orchestrator.text import json_safe, utf8

# `$` alone lets a line end pass, and the schema of events is for others than Python, who know no \Z.
TaskName: TypeAlias = Annotated[
    str, Meta(pattern=r"^(?:chief|worker|ps|evaluator)/(?:0|[1-9][0-9]{0,6})$(?!\n)")
]
AttemptText: TypeAlias = Annotated[str, Meta(pattern=rf"^(?:{AttemptName.PATTERN.pattern})$(?!\n)")]


class Phase(StrEnum):
    CONNECT = "connect"
    SETUP = "setup"
    DATA = "data"
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


class FailureKind(StrEnum):
    """Kinds of failure that the first cause of an attempt may be."""

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
    ALLOCATION = "allocation"  # Slurm ended the job, or took the node
    REBOOTED = "rebooted"
    BUG = "bug"


class StopBy(StrEnum):
    """Reasons for the end of tasks: a person, a failure, the end of the work."""

    USER = "user"
    FAILURE = "failure"  # of a task, or a hang
    COMPLETION = "completion"  # what matters is done; the others never end by themselves


class Loss(StrEnum):
    """Why it is not known how a task ended, where that has a name."""

    NONE = ""
    RESTARTED = "restarted"  # its machine or container was
    UNREACHABLE = "unreachable"  # its host stays lost
    TAKEN = "taken"  # Slurm ended its job, or took its node
    UNSTARTED = "unstarted"


@dataclass_transform(frozen_default=True)
class _Fact(Struct, frozen=True, tag_field="event", tag=True):
    """The base of all events."""


class RunPlanned(_Fact):
    run: str
    name: str
    owner: str
    command: tuple[str, ...]
    tasks: tuple[tuple[TaskName, str], ...]  # with their hosts
    notes: tuple[str, ...]
    folder: str


class RunAdopted(_Fact):
    """A keeper took over a run whose keeper was gone."""

    run: str
    by: str


class RunLeft(_Fact):
    """A keeper that wanted to take the run over could not: the run continues as it was."""

    run: str
    why: str
    hint: str = ""


class Noted(_Fact):
    """Something the user should know that is no failure: what was left out, what is very large."""

    text: str


class PhaseStarted(_Fact):
    phase: Phase
    hosts: int


class PhaseEnded(_Fact):
    phase: Phase
    ok: bool
    seconds: float


class HostConnected(_Fact):
    host: str
    seconds: float
    clock: float = 0.0  # seconds that its clock is ahead of ours


class HostFailed(_Fact):
    """A host cannot go on in this phase; worded as in `HostError`."""

    host: str
    phase: Phase
    kind: str
    what: str
    why: str
    hint: str


class HostLost(_Fact):
    """No word from the host: its tasks are *unknown*, not failed."""

    host: str
    why: str


class HostRecovered(_Fact):
    host: str
    seconds: float  # how long it was lost


class CheckReported(_Fact):
    host: str
    check: str  # its name: a word
    level: Level
    found: str  # short: "3.11.2", "120 GB free"
    why: str = ""
    hint: str = ""
    between: bool = False  # of the host and others, either of which may be the cause


class HostDescribed(_Fact):
    """A machine as preflight found it; "" and 0 stand for what it does not tell."""

    host: str
    processor: str
    cpus: int
    memory: int  # bytes
    kernel: str
    driver: str  # of NVIDIA
    gpus: tuple[str, ...]
    packages: dict[str, str]  # their versions, with that of Python


class Closed(StrEnum):
    """Why a connection between two hosts failed, where what is concluded depends on it."""

    TIMED_OUT = "timed out"
    REFUSED = "refused"
    NO_ROUTE = "no route"
    UNRESOLVED = "does not resolve"
    FOREIGN = "answered by something else"


class PairReported(_Fact):
    """One connection of `source` to a task port of `target`."""

    source: str
    target: str
    address: str  # address:port
    tcp: bool
    tcp_ms: float | None
    icmp: bool | None  # of a silent one: whether `target` answers a ping; None: not tried, or not measured
    why: str = ""
    resolved: str = ""  # the numeric address that `source` tried
    large: bool | None = None  # whether large packets come from `target`; None: not tried
    large_ms: float | None = None  # for 64 kB


class Stepped(_Fact):
    """A host, a task or this machine ("") does a step of what takes long; 0 of 0: not known.

    Without a step it has nothing left to do.
    """

    who: str
    step: str
    done: int = 0
    total: int = 0
    unit: str = "bytes"


class EnvironmentMade(_Fact):
    """A host has the environment of [env]; the versions are those that were imported there."""

    host: str
    path: str
    versions: dict[str, str]
    seconds: float
    reused: bool  # it was there already


class DataPlaced(_Fact):
    """A host has the data of [data], whole and verified."""

    host: str
    digest: str
    path: str
    total: int  # bytes of all of it
    sent: int  # bytes that came from the controller,
    peers: int  # and from other hosts
    seconds: float
    reused: bool  # it was there already, or another host on the same disk got it


class TreeSynced(_Fact):
    host: str
    digest: str
    files: int
    sent: int  # bytes that crossed the wire
    seconds: float
    reused: bool


class HostValidated(_Fact):
    """The host trained alone; of a command of the user's own only the time is known."""

    host: str
    dataset: str
    loss: float | None
    steps_per_second: float | None
    seconds: float
    note: str = ""


class ValidationStood(_Fact):
    """Hosts that trained alone in an earlier launch and are as they were then."""

    hosts: tuple[str, ...]
    seconds: float  # ago, for the one where it is longest


class TaskStarted(_Fact):
    task: TaskName
    host: str
    attempt: AttemptText
    pid: int  # 0: nothing was started, or nobody knows


class TaskReady(_Fact):
    task: TaskName
    note: str


class TaskProgressed(_Fact):
    task: TaskName
    step: int
    loss: float | None
    steps_per_second: float | None
    diverged: str = ""  # "nan" or "inf", where the loss is no number
    metrics: dict[str, float] = {}  # the others, by name: val_loss, accuracy, f1


class Last(StrEnum):
    """Kinds of a task's own final words."""

    RESULT = "result"
    ERROR = "error"


class TaskReported(_Fact):
    """The task's own final words."""

    task: TaskName
    kind: Last
    data: dict[str, Any]


class LogLine(_Fact):
    """One whole display line of a task; `sent` is the node's time corrected by the clock offset."""

    task: TaskName
    host: str
    text: str
    sent: float


class GapPlace(StrEnum):
    """Where bytes or lines of a log are missing."""

    NODE = "node"
    CONTROLLER = "controller"  # they are on the node
    DISPLAY = "display"


class LogGap(_Fact):
    """Bytes that are missing on the node (disk full, cap), or lines that only the display dropped."""

    task: TaskName
    where: GapPlace
    count: int  # bytes, lines in the display
    why: str


class TaskExited(_Fact):
    """Comes after the task's last byte; exactly one of code, signal and lost says how."""

    task: TaskName
    host: str
    attempt: AttemptText
    code: int | None = None
    signal: int | None = None
    lost: str = ""  # why the end is unknown; "" when it is known
    seconds: float = 0.0
    ended: float = 0.0  # node time, corrected
    stopped: bool = False  # it ended because it was told to
    note: str = ""  # what its supervisor has to say: what it was told by the machine, what was left behind
    loss: Loss = Loss.NONE
    oom_kills: int = 0  # of its processes, by the kernel for want of memory


class HangKind(StrEnum):
    SILENT = "silent"  # no task has printed or reported anything
    LAGGING = "lagging"  # some have stayed behind, silently, while others went on
    QUIET = "quiet"  # as silent; nothing is done about it, since nobody asked for that, and no stacks follow


class HangSuspected(_Fact):
    """No task has printed or reported anything for so long, or these have stayed behind the others."""

    kind: HangKind
    tasks: tuple[str, ...]
    seconds: float


class StacksTaken(_Fact):
    """Where the tasks stand; the whole stacks are in `file`, within the run's folder."""

    odd: tuple[str, ...]  # the tasks that the others wait for, as far as one can see
    found: str  # one line: who hangs, where, and what the others do
    file: str
    missing: tuple[str, ...]  # hosts that gave none
    seconds: float  # that it took


class HangPassed(_Fact):
    """The tasks that seemed to hang were heard of again, or became unknown with their host."""

    seconds: float  # since the suspicion


class PeersReported(_Fact):
    """Tasks that train each for itself; none: they have met the others after all."""

    apart: tuple[TaskName, ...]
    connected: bool  # and yet nothing was reduced among them


class AttemptFailed(_Fact):
    """An attempt failed and another one follows; how it failed is worded as in RunEnded."""

    attempt: AttemptText
    cause: str
    cause_task: str
    last_lines: tuple[str, ...]
    hint: str
    pause: float  # seconds until the next attempt is prepared
    restart: int  # which one this is, from 1
    most: int  # how many are allowed
    kind: FailureKind = FailureKind.NONE
    cause_host: str = ""
    why: str = ""


class HostReplaced(_Fact):
    """A host that cannot be reached has no task any more; `by` is "" when nothing takes its place."""

    host: str
    by: str
    why: str


class AttemptPlanned(_Fact):
    """The tasks of a later attempt, and where they go."""

    attempt: AttemptText
    tasks: tuple[tuple[TaskName, str], ...]  # with their hosts


class StopRequested(_Fact):
    by: StopBy
    why: str
    grace: float


class RunEnded(_Fact):
    run: str
    outcome: Outcome
    status: int
    seconds: float
    cause: str  # one line: who and why; "" on success
    cause_task: str  # "" when no task is to blame
    last_lines: tuple[str, ...]  # its last traceback where that ended it, else the end of its log
    folder: str
    hint: str = ""
    unproven: tuple[str, ...] = ()  # hosts where something may be left, or is
    alive: tuple[str, ...] = ()  # of these, the hosts that answer, and where tasks could not be ended
    attempts: int = 1
    given_up: str = ""  # why no other attempt followed, where restarts were asked for
    kind: FailureKind = FailureKind.NONE
    cause_host: str = ""
    why: str = ""  # where the exception was raised, and from which other one
    warnings: tuple[str, ...] = ()  # of a success: a Python of a task that failed, processes left behind


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
    | HostDescribed
    | PairReported
    | Stepped
    | EnvironmentMade
    | DataPlaced
    | TreeSynced
    | HostValidated
    | ValidationStood
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
    | PeersReported
    | AttemptFailed
    | HostReplaced
    | AttemptPlanned
    | StopRequested
    | RunEnded
)


class Stamped(Struct, frozen=True):
    """An event and when the controller learned of it (seconds since the epoch)."""

    at: float
    event: Event


_FAR = 1e15  # seconds


def encode(stamped: Stamped) -> bytes:
    """Return an event as a line of JSON, without its newline: UTF-8, and harmless for a terminal.

    {"at": seconds since the epoch, "event": class name, ...fields}
    """
    fields = {"at": stamped.at, **msgspec.to_builtins(stamped.event)}
    if (attempt := fields.get("attempt", "")).isascii() and attempt.isdigit():
        fields["attempt"] = int(attempt)  # a name to us, since a validation has one too; elsewhere it counts
    try:
        line = msgspec.json.encode(fields)
    except UnicodeEncodeError:  # a name or an argument that is no UTF-8
        line = msgspec.json.encode(utf8(fields))
    return json_safe(line)


def decode(line: bytes) -> Stamped:
    """The inverse of `encode`; raise `msgspec.ValidationError` for anything else."""
    with validity():
        fields = msgspec.json.decode(line, type=dict[str, Any])
        at = msgspec.convert(fields.pop("at", None), Annotated[float, Meta(ge=-_FAR, le=_FAR)])
        if type(attempt := fields.get("attempt")) is int:
            fields["attempt"] = str(attempt)
        return Stamped(at, msgspec.convert(fields, Event))


@contextmanager
def validity() -> Iterator[None]:
    """Make a `msgspec.ValidationError` of whatever reading JSON raises."""
    try:
        yield
    except msgspec.ValidationError:
        raise
    except RecursionError:
        raise msgspec.ValidationError("it is nested too deep") from None
    except (ValueError, TypeError, OverflowError) as error:  # cut, no UTF-8, a number beyond a float
        raise msgspec.ValidationError(str(error) or type(error).__name__) from error
