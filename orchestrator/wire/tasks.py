"""Messages about a run's tasks on a node: start, follow, inspect, stop, and what remains of them."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

from orchestrator.errors import expect
from orchestrator.events import AttemptText, TaskName
from orchestrator.model import Preset
from orchestrator.value import Value
from orchestrator.wire.message import (
    LARGE,
    Code,
    Count,
    Dump,
    Failure,
    Moment,
    Name,
    Nothing,
    Percent,
    Pid,
    ProtocolError,
    Reply,
    Request,
    Seconds,
    Signal,
    Size,
    Words,
    read,
)


class TaskPhase(StrEnum):
    """A task's progress on its node, as in state.json."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"  # code or signal is known
    LOST = "lost"  # how it ended is unknown
    UNSTARTED = "unstarted"  # `message` gives the reason

    @property
    def final(self) -> bool:
        """Return True if nothing of the task is alive."""
        return self in (TaskPhase.EXITED, TaskPhase.LOST, TaskPhase.UNSTARTED)


class Want(StrEnum):
    """A task's last order."""

    RUN = "run"
    STOP = "stop"
    KILL = "kill"


class Peers(StrEnum):
    """A task's contact with the other tasks of its run."""

    UNKNOWN = ""
    NONE = "none"  # no connection to another task so far
    IDLE = "idle"  # connected, by a strategy that has reduced nothing so far
    UNPATCHED = "unpatched"  # connected, by a Python that ignores our `sitecustomize`
    MET = "met"


class Gap(Reply):
    """Bytes of a log that a node could not store."""

    bytes: Size
    why: Words = ""


class TaskRecord(Reply):
    """state.json of a task; nodes may hold one of an earlier version, so few fields are required."""

    state: TaskPhase
    want: Want = Want.RUN
    pid: Pid | None = None
    exit_code: Code | None = None
    exit_signal: Signal | None = None
    started_ns: Moment | None = None
    ended_ns: Moment | None = None
    gaps: tuple[Gap, ...] = ()
    oom_kills: Count = 0  # by the kernel because memory ran out
    peers: Peers = Peers.UNKNOWN
    restarted: bool = False  # its machine restarted, which is why it is lost
    seconds: Seconds | None = None  # duration, by a monotonic clock
    message: Words = ""

    @property
    def started_as(self) -> int:
        """Return the pid of its program; 0 if none was started, or none is known."""
        return 0 if self.state is TaskPhase.UNSTARTED else self.pid or 0

    @property
    def missing(self) -> int:
        """Return the bytes of its log that its node could not store."""
        return sum(gap.bytes for gap in self.gaps)


class Spec(Value, kw_only=True):
    """A command to start, and how it ends."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    setup: str | None
    python: str
    grace: float
    port: int
    endless: bool
    lifeline: float
    fence: float | None  # seconds without contact after which it ends itself; None: never
    stacks: bool
    log_cap: int
    address: str = ""  # of its host, among those of the run
    interfaces: Sequence[str] = ()  # variables for the name of the interface that carries it
    terminal: Sequence[int] | None = None  # rows and columns, for a task with a terminal
    imports: Sequence[str] = ()  # the first ones of its program, which a standby may have made
    preset: Sequence[Preset] = ()  # variables that its program sets before them
    free: Sequence[str] = ()  # variables that may differ from those of a standby
    guest: bool = False  # a module of ours, which a fork of another task's standby can run


class Started(Reply):
    pid: Pid | None
    warm: bool = False  # it was a standby
    cold: Words = ""  # why it was none


class Standbys(Reply):
    made: Count
    why: tuple[Words, ...] = ()  # no more were


class Standby(Request[Standbys]):
    """Start tasks ahead, up to their imports; `spare`: only where there is memory for more."""

    specs: Sequence[Spec]
    spare: bool


class StandbyTask(Reply):
    """A task that waits for a launch."""

    command: Words
    memory: Size  # bytes of its own; 0 while it imports


class StandbysKept(Reply):
    waiting: tuple[StandbyTask, ...]


class StandbyKeep(Request[StandbysKept]):
    """Let the tasks that were started ahead wait without us, until another owner's run has the machine."""

    seconds: float
    owner: str
    machine: str  # as in a lease


class Start(Request[Started]):
    run: str
    attempt: str
    task: str
    plan: str | None
    spec: Spec


class Stopped(Reply):
    asked: tuple[TaskName, ...]


class Type(Request[Nothing]):
    """Send keyboard input to the terminal of a task."""

    run: str
    attempt: str
    task: str
    typed: str  # hexadecimal
    terminal: Sequence[int] | None  # None: unchanged


class Stop(Request[Stopped]):
    """End the tasks of an attempt; of all without one or if `final`: then nothing of the run starts again."""

    run: str
    grace: float
    kill: bool
    final: bool
    attempt: str = ""


class Killed(Reply):
    pid: Pid
    argv0: Words


class Swept(Reply):
    killed: tuple[Killed, ...]
    alive: tuple[TaskName, ...]


class Sweep(Request[Swept]):
    """Kill remaining processes of a run's ended tasks; `alive` are those that have not ended."""

    run: str


class From(Value):
    """A task to follow, and how much of its files exists here already."""

    task: str
    log: int
    report: int


class Unknown(Reply):
    missing: tuple[TaskName, ...]


class Follow(Request[Unknown]):
    """Have the tasks' logs, reports and states sent as they grow; `missing` are not on that node."""

    run: str
    attempt: str
    tasks: Sequence[From]

    def check(self, reply: Unknown) -> None:
        requested = {start.task for start in self.tasks}
        expect(set(reply.missing) <= requested, "it names tasks that nobody asked for")


class Unfollow(Request[Nothing]):
    """End a stream that a `follow` began; frames in flight still arrive."""

    target: int  # the id of the `follow`


class _News(Reply):
    stream: Count  # the id of the `follow`
    attempt: AttemptText
    task: TaskName


class LogNews(_News):
    """The payload is at `offset` of the log; `times` are (offset, node's clock in ns)."""

    offset: Size
    times: tuple[tuple[Size, Moment], ...]


class ReportNews(_News):
    offset: Size


class StateNews(_News):
    state: TaskRecord


News: TypeAlias = LogNews | ReportNews | StateNews
NEWS_PAYLOAD = 64 << 10
_KINDS: Mapping[object, type[News]] = {"log": LogNews, "report": ReportNews, "state": StateNews}


def news(header: Mapping[str, object], payload: bytes) -> News:
    """A frame of a stream; raise ProtocolError."""
    kind = header.get("kind")
    news_type = _KINDS.get(kind) if isinstance(kind, str) else None
    if news_type is None:
        raise ProtocolError(f"it sent a frame of no known kind: {kind!r}")
    if payload and news_type is StateNews:
        raise ProtocolError("a state came with a payload")
    return read(header, news_type, f"a frame of a task's {kind}")


class Keeper(Reply):
    who: Words | None = None
    alive: bool = False


class Keeping(Reply):
    granted: bool
    holder: Keeper | None = None


class Keep(Request[Keeping]):
    """Become the run's keeper on that node; `plan` is stored there for a takeover."""

    run: str
    who: str
    plan: str | None = None
    again: bool = False  # after a lost connection


class TaskStatus(Reply):
    attempt: AttemptText
    task: TaskName
    state: TaskRecord
    alive: bool
    log_size: Size = 0


class RunStatus(Reply):
    run: Name
    plan: str | None  # JSON, as a keeper sent it
    keeper: Keeper | None
    stopped: bool  # a user has stopped it
    tasks: tuple[TaskStatus, ...]


class Runs(Reply):
    runs: tuple[RunStatus, ...]
    more: Count = 0  # older ones, for which there was no room
    standbys: tuple[StandbyTask, ...] = ()  # where all runs were asked for

    @property
    def tasks(self) -> tuple[TaskStatus, ...]:
        """Return the tasks of all runs."""
        return tuple(task for run in self.runs for task in run.tasks)


class States(Request[Runs]):
    """Ask for the tasks of one run, or of all runs. The reply waits up to `wait` seconds for their end."""

    HEAD = LARGE
    run: str | None
    wait: float = 0.0

    def check(self, reply: Runs) -> None:
        names = [run.run for run in reply.runs]
        expect(self.run is None or set(names) <= {self.run}, "it tells of another run")
        expect(len(set(names)) == len(names), "it tells of a run twice")


class StackProcess(Reply):
    pid: Pid
    argv0: Words
    python: bool
    state: Words
    waits: Words
    cpu: Seconds
    cwd: Words
    text: Dump
    why: Words


class TaskStacks(Reply):
    attempt: AttemptText
    task: TaskName
    processes: tuple[StackProcess, ...]
    more: Count


class StacksOf(Reply):
    tasks: tuple[TaskStacks, ...]


class Stacks(Request[StacksOf]):
    """Ask where the living tasks are; of one attempt, if given."""

    HEAD = LARGE
    run: str
    attempt: str | None = None


class TaskVitals(Reply):
    attempt: AttemptText
    task: TaskName
    cpu: Seconds  # by all its processes, so far
    memory: Size
    gpu_memory: Size | None = None  # None: no GPU was requested, or none responds
    gpu_busy: Percent | None = None


class Measured(Reply):
    tasks: tuple[TaskVitals, ...]


class VitalsAsk(Request[Measured]):
    """Ask what the living tasks of an attempt use."""

    run: str
    attempt: str

    def check(self, reply: Measured) -> None:
        expect(all(task.attempt == self.attempt for task in reply.tasks), "it tells of another attempt")


class RunsHere(Reply):
    alive: tuple[Name, ...]
    known: tuple[Name, ...]


class CleanLook(Request[RunsHere]):
    """Ask which runs live there, and which are known."""


class Orphan(Reply):
    """A process that an ended task left behind."""

    pid: Pid
    argv0: Words
    run: Words
    task: Words


class Gone(Reply):
    name: Words
    bytes: Size


class FolderKind(Reply):
    """The folders of one kind: how many exist, what was or would be removed, what could not be."""

    count: Count
    bytes: Size
    gone: tuple[Gone, ...]
    failed: tuple[Words, ...]


class Folders(Reply):
    state: FolderKind
    work: FolderKind
    code: FolderKind
    data: FolderKind
    envs: FolderKind
    scraps: FolderKind


class Cleaned(Reply):
    orphans: tuple[Orphan, ...]
    killed: tuple[Orphan, ...]
    trouble: tuple[Failure, ...]
    folders: Folders
    standbys: Count = 0  # tasks that were kept warm


class Clean(Request[Cleaned]):
    """Remove what may be removed; `alive` and `known` are runs according to all hosts together."""

    HEAD = 16 << 20
    workdir: str
    alive: Sequence[str]
    known: Sequence[str]
    older: float
    shared: bool
    work: bool
    dry: bool
