"""Facts about a run: typed, frozen, in the past tense, without prose, colors or exceptions.

Every consumer matches on the class and ends with `assert_never`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, field

from orchestrator.names import AttemptName
from orchestrator.text import READING, json_of, json_safe
from orchestrator.value import Value

# `$` alone accepts a final newline, and other languages that read the event schema have no \Z.
TaskName: TypeAlias = Annotated[
    str, Meta(pattern=r"^(?:chief|worker|ps|evaluator|service)/(?:0|[1-9][0-9]{0,6})$(?!\n)")
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
    STOPPED = "stopped"  # a user requested it
    CLUSTER = "cluster"  # never started: a host, a check, the staging or the validation failed


class FailureKind(StrEnum):
    """Kinds of failure that can be the root cause of an attempt's end."""

    NONE = ""
    START = "start"  # a phase before the tasks failed, or a task could not be executed
    EXIT = "exit"
    SIGNAL = "signal"
    EXCEPTION = "exception"
    OUT_OF_MEMORY = "out-of-memory"
    RESOURCES = "resources"  # TensorFlow could not allocate what it needed, usually GPU memory
    DISK = "disk"
    PORT = "port"
    NAN = "nan"
    MISMATCH = "mismatch"  # the tasks run different programs or read different data
    PEER = "peer"  # a task that others report as gone, without a failure of its own
    TIMEOUT = "time-out"  # tasks that waited for each other at the start
    INCARNATION = "incarnation"  # a single task was restarted
    HANG = "hang"
    LOST = "lost"  # its supervisor or guard was killed
    HOST_LOST = "host-lost"
    ALLOCATION = "allocation"  # Slurm ended the job, or took the node
    REBOOTED = "rebooted"
    BUG = "bug"


class StopBy(StrEnum):
    """Causes of a task's end: a person, a failure, or the completion of the run."""

    USER = "user"
    FAILURE = "failure"  # of a task, or a hang
    COMPLETION = "completion"  # the deciding tasks are done; the others never exit by themselves


class Loss(StrEnum):
    """Known reasons why the end of a task was not observed."""

    NONE = ""
    RESTARTED = "restarted"  # its machine or container restarted
    UNREACHABLE = "unreachable"  # its host is still lost
    TAKEN = "taken"  # Slurm ended its job, or took its node
    UNSTARTED = "unstarted"


class _Fact(Value, tag_field="event", tag=True):
    """Base class of all events."""


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
    """A keeper could not take over a run; the run continues as before."""

    run: str
    why: str
    hint: str = ""


class Noted(_Fact):
    """A notice that is not a failure, such as skipped files or very large ones."""

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
    clock: float = 0.0  # seconds that its clock is ahead of the controller's


class HostFailed(_Fact):
    """A host cannot continue in this phase; fields as in `HostError`."""

    host: str
    phase: Phase
    kind: str
    what: str
    why: str
    hint: str


class HostLost(_Fact):
    """The host stopped responding: the state of its tasks is *unknown*, not failed."""

    host: str
    why: str


class HostRecovered(_Fact):
    host: str
    seconds: float  # how long it was lost


class CheckReported(_Fact):
    host: str
    check: str  # the name of the check: one word
    level: Level
    found: str  # short: "3.11.2", "120 GB free"
    why: str = ""
    hint: str = ""
    between: bool = False  # involves the host and others, any of which may be the cause


class HostDescribed(_Fact):
    """A machine as preflight found it; "" and 0 stand for values it does not report."""

    host: str
    processor: str
    cpus: int
    memory: int  # bytes
    kernel: str
    driver: str  # NVIDIA driver
    gpus: tuple[str, ...]
    packages: dict[str, str]  # of packages, and of Python


class Closed(StrEnum):
    """Reasons why a connection between two hosts failed, where a conclusion depends on it."""

    TIMED_OUT = "timed out"
    REFUSED = "refused"
    NO_ROUTE = "no route"
    UNRESOLVED = "does not resolve"
    FOREIGN = "answered by something else"


class PairReported(_Fact):
    """The result of one connection from `source` to a task port of `target`."""

    source: str
    target: str
    address: str  # address:port
    tcp: bool
    tcp_ms: float | None
    icmp: bool | None  # without a reply: whether `target` answers a ping; None: not tried, or not measured
    why: str = ""  # with `tcp`: another address of that name connected
    resolved: str = ""  # the numeric address that `source` tried
    large: bool | None = None  # whether large packets arrive from `target`; None: not tried
    large_ms: float | None = None  # for 64 kB


class Stepped(_Fact):
    """Progress of a long step on a host, in a task, or on the controller (""); 0 of 0: not known.

    Without a step, the work is finished.
    """

    who: str
    step: str
    done: int = 0
    total: int = 0
    unit: str = "bytes"


class EnvironmentMade(_Fact):
    """A host has the environment of [env]; the versions are those that its Python imported."""

    host: str
    path: str
    versions: dict[str, str]
    seconds: float
    reused: bool  # it already existed


class DataPlaced(_Fact):
    """A host has the data of [data], complete and verified."""

    host: str
    digest: str
    path: str
    total: int  # bytes in total
    sent: int  # bytes received from the controller,
    peers: int  # and from other hosts
    seconds: float
    reused: bool  # it already existed, or another host on the same disk received it


class TreeSynced(_Fact):
    host: str
    digest: str
    files: int
    sent: int  # bytes sent over the network
    seconds: float
    reused: bool


class HostValidated(_Fact):
    """The host passed local validation; of a user's own command only the duration is known."""

    host: str
    dataset: str
    loss: float | None
    steps_per_second: float | None
    seconds: float
    note: str = ""


class ValidationStood(_Fact):
    """Hosts that passed local validation in an earlier launch and have not changed since."""

    hosts: tuple[str, ...]
    seconds: float  # seconds ago, for the oldest one


class TaskStarted(_Fact):
    task: TaskName
    host: str
    attempt: AttemptText
    pid: int  # 0: nothing was started, or it is not known


class TaskReady(_Fact):
    task: TaskName
    note: str


class TaskProgressed(_Fact):
    task: TaskName
    step: int
    loss: float | None
    steps_per_second: float | None
    diverged: str = ""  # "nan" or "inf" if the loss is not a number
    metrics: dict[str, float] = field(default_factory=dict)  # the others by name: val_loss, f1


class Last(StrEnum):
    """Kinds of a task's report beside its progress."""

    PARAMS = "params"  # what it trains with
    RESULT = "result"
    ERROR = "error"


class TaskReported(_Fact):
    """A report of a task: its parameters, its result, or its error."""

    task: TaskName
    kind: Last
    data: dict[str, Any]


class LogLine(_Fact):
    """One complete display line of a task; `sent` is the node's time corrected by the clock offset."""

    task: TaskName
    host: str
    text: str
    sent: float


class GapPlace(StrEnum):
    """Where bytes or lines of a log are missing."""

    NODE = "node"
    CONTROLLER = "controller"  # still stored on the node
    DISPLAY = "display"


class LogGap(_Fact):
    """Bytes that are missing on the node (disk full, cap), or lines that only the display dropped."""

    task: TaskName
    where: GapPlace
    count: int  # bytes; lines in the display
    why: str


class TaskExited(_Fact):
    """A task ended, after its last byte; exactly one of code, signal and lost is set."""

    task: TaskName
    host: str
    attempt: AttemptText
    code: int | None = None
    signal: int | None = None
    lost: str = ""  # why the end is unknown; "" if it is known
    seconds: float = 0.0
    ended: float = 0.0  # node time, corrected
    stopped: bool = False  # it ended because it was stopped
    note: str = ""  # the supervisor's remark: what the machine reported, what was left behind
    loss: Loss = Loss.NONE
    oom_kills: int = 0  # of its processes, by the kernel because of memory


class HangKind(StrEnum):
    SILENT = "silent"  # no task has printed or reported anything
    LAGGING = "lagging"  # some tasks have silently fallen behind the others
    QUIET = "quiet"  # as silent; no action follows because none was requested, and no stacks


class HangSuspected(_Fact):
    """No task has printed or reported anything for a while, or some have fallen behind the others."""

    kind: HangKind
    tasks: tuple[str, ...]
    seconds: float


class StacksTaken(_Fact):
    """Where the tasks are; the full stacks are in `file` in the run's folder."""

    odd: tuple[str, ...]  # the tasks that the others appear to wait for
    found: str  # one line: which task hangs, where, and what the others do
    file: str
    missing: tuple[str, ...]  # hosts that returned no stacks
    seconds: float  # duration in seconds


class HangPassed(_Fact):
    """The tasks that seemed to hang produced output again, or became unknown with their host."""

    seconds: float  # since the suspicion


class PeersReported(_Fact):
    """Tasks that train separately instead of together; none: they have connected after all."""

    apart: tuple[TaskName, ...]
    connected: bool  # and yet no reduction took place among them
    unpatched: bool = False  # they train together, but without the changes to TensorFlow


class AttemptFailed(_Fact):
    """An attempt failed and another one follows; the failure is described as in RunEnded."""

    attempt: AttemptText
    cause: str
    cause_task: str
    last_lines: tuple[str, ...]
    hint: str
    pause: float  # seconds until the next attempt is prepared
    restart: int  # the number of this restart, from 1
    most: int  # allowed restarts
    kind: FailureKind = FailureKind.NONE
    cause_host: str = ""
    why: str = ""


class HostReplaced(_Fact):
    """A host that cannot be reached no longer has tasks; `by` is "" if no host takes its place."""

    host: str
    by: str
    why: str


class AttemptPlanned(_Fact):
    """The tasks of a later attempt, and their hosts."""

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
    cause: str  # one line: which task and why; "" on success
    cause_task: str  # "" if no task is to blame
    last_lines: tuple[str, ...]  # its last traceback if that ended it, otherwise the end of its log
    folder: str
    hint: str = ""
    unproven: tuple[str, ...] = ()  # hosts where processes may remain, or do
    alive: tuple[str, ...] = ()  # those of them that respond, where tasks could not be ended
    attempts: int = 1
    given_up: str = ""  # why no further attempt followed although restarts were requested
    kind: FailureKind = FailureKind.NONE
    cause_host: str = ""
    why: str = ""  # where the exception was raised, and the exception it came from
    warnings: tuple[str, ...] = ()  # of a success: a task whose Python failed, remaining processes


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


_FAR = 1e15  # seconds


class Stamped(Value):
    """An event and the time when the controller received it (seconds since the epoch)."""

    at: Annotated[float, Meta(ge=-_FAR, le=_FAR)]
    event: Event


def encode(stamped: Stamped) -> bytes:
    """Return an event as a line of JSON without its newline: UTF-8, and harmless for a terminal.

    {"at": seconds since the epoch, "event": class name, ...fields}
    """
    fields = {"at": stamped.at, **msgspec.to_builtins(stamped.event)}
    if (attempt := fields.get("attempt", "")).isascii() and attempt.isdigit():
        fields["attempt"] = int(attempt)  # a name here, because validations have one; in JSON a number
    return json_safe(json_of(fields))


def decode(line: bytes) -> Stamped:
    """Return the event that `encode` encoded; raise `msgspec.ValidationError` for anything else."""
    with validity(), READING:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        if type(attempt := fields.get("attempt")) is int:
            fields["attempt"] = str(attempt)
        # A bare union would take twenty times as long.
        return msgspec.convert({"at": fields.pop("at", None), "event": fields}, Stamped)


@contextmanager
def validity() -> Iterator[None]:
    """Turn whatever reading JSON raises into a `msgspec.ValidationError`."""
    try:
        yield
    except msgspec.ValidationError:
        raise
    except RecursionError:
        raise msgspec.ValidationError("it is nested too deep") from None
    except (ValueError, TypeError, OverflowError) as error:  # truncated, not UTF-8, a number beyond a float
        raise msgspec.ValidationError(str(error) or type(error).__name__) from error
