"""Messages about a machine: an agent's greeting, facts for preflight, ports, environments, and `exec`."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta

from orchestrator.errors import expect
from orchestrator.value import Value
from orchestrator.wire.message import (
    Code,
    Count,
    Digest,
    Failure,
    Folder,
    Lines,
    Moment,
    Name,
    Nothing,
    Port,
    Reply,
    Request,
    Seconds,
    Signal,
    Size,
    Words,
)


class Hello(Reply):
    python: Words
    user: Words
    boot_id: Words
    netns: Words
    time_ns: Moment
    state: Folder | None
    state_error: Failure | None
    state_place: Words = ""  # equal for one folder under two names


class Time(Reply):
    time_ns: Moment


class Ping(Request[Time]):
    """Ask for its clock."""


Status = Annotated[int, Meta(ge=0, le=255)]


class CommandEnd(Reply):
    """How it ended; nothing of it runs any more except what `left` names."""

    status: Status
    stopped: bool
    ended: Count  # processes that it left running
    left: tuple[Words, ...]
    error: Words = ""  # why it could not be started


class Pipe(StrEnum):
    """The stream that a command printed on."""

    OUT = "out"
    ERR = "err"


class Exec(Request[CommandEnd]):
    PAYLOAD = 64 << 10  # of a frame of its output

    argv: tuple[str, ...]


class ExecEnd(Request[Nothing]):
    """End the command; `Exec` is answered when nothing of it is left."""


_MANY = Meta(max_length=10_000)  # addresses of one machine


class Python(Reply):
    ok: bool
    path: Words | None
    version: Words | None
    error: Words
    no_pip: bool = False  # it has no pip, or one that refuses to install into it (PEP 668)


class Setup(Reply):
    """The result of [job] `setup` on a host."""

    status: Code | None
    words: Lines  # that it printed as errors


class R(Reply):
    version: Words | None
    reticulate: Words | None
    jsonlite: Words | None
    error: Words


class Workdir(Reply):
    path: Words
    writable: bool
    error: Words
    free: Size


class Disks(Reply):
    state: Size | None  # free bytes there
    workdir: Workdir


class Gpu(Reply):
    index: Count
    name: Words
    fields: Mapping[Words, Words] = {}  # from nvidia-smi, without fields that its driver does not support


class GpuLook(Reply, kw_only=True):
    gpus: tuple[Gpu, ...]
    gpu_error: Words = ""  # why nvidia-smi does not show all of them
    xids: tuple[tuple[Moment, Words, Count, Words], ...] = ()  # kernel messages: when, which GPU, code, text
    others: tuple[tuple[Words, Words, Moment], ...] = ()  # runs of others: whose, which, since


class Gpus(Request[GpuLook]):
    seconds: float = 12.0
    others: bool = False


class Interface(Reply):
    """An address of the machine, and its interface; "" if unknown."""

    name: Words
    ip: Words


class Hardware(Reply):
    """Properties of the machine and of this login; 0 or "" if unknown."""

    cpus: Count
    memory: Size
    kernel: Words
    processor: Words
    driver: Words  # the version of NVIDIA's kernel module
    shm: Size | None  # free bytes in /dev/shm
    ports: tuple[Port, Port] | None  # the first and the last that the kernel assigns to connections
    limits: dict[Name, Size]  # hard limits of a process, named as in setrlimit(2)
    logout: tuple[Name, ...]  # settings of systemd that affect a user's processes after a logout


class MachineFacts(GpuLook, kw_only=True):
    machine: Hardware
    python: Python
    setup: Setup | None  # None: there is none, or it did not finish
    packages: dict[Words, Words | None]
    digest: Digest  # of the state that a validation depends on
    r: R | None
    disk: Disks
    addresses: Annotated[tuple[Interface, ...], _MANY]
    answers: dict[Name, Lines]  # of `programs`, by name; "" for one that is missing or fails


class Facts(Request[MachineFacts]):
    python: str
    r: bool
    workdir: str
    packages: Sequence[str]
    setup: str | None
    env: Mapping[str, str] = {}
    programs: Mapping[str, Sequence[str]] = {}

    def check(self, reply: MachineFacts) -> None:
        expect(reply.answers.keys() <= self.programs.keys(), "it ran what nobody asked for")


class Module(Reply):
    """A module that was imported, or why it could not be."""

    name: Words
    version: Words | None
    error: Words


class Imported(Reply):
    modules: tuple[Module, ...]  # up to the first that fails
    gpus: Count | None  # visible to the framework
    built: Words  # what it was built with, if the probe reports it
    importing: Words  # what was being imported when it ended
    ended: Words  # why it ended too early, "" if it did not
    signal: Signal | None  # that ended it, and was not ours


class Imports(Request[Imported]):
    """Import these modules as a task of the job would."""

    python: str
    setup: str | None
    env: Mapping[str, str]
    modules: Sequence[str]
    gpus: bool = False
    probe: str = ""  # Python code that runs after the imports

    def check(self, reply: Imported) -> None:
        expect({each.name for each in reply.modules} <= {*self.modules}, "it imported what nobody asked for")


class Sharers(Reply):
    hosts: tuple[Words, ...]


class Share(Request[Sharers]):
    """Have the host write its name to the working folder, read the names there, or remove all."""

    workdir: str
    nonce: str
    host: str
    step: Literal["write", "read", "clean"]


class Lessee(Reply):
    """The holder of a lease; None: it has not been written yet."""

    run: Words | None
    task: Words | None
    owner: Words | None

    @property
    def words(self) -> str:
        """Return `worker/0 of run r1 (ada@home)`."""
        return f"{self.task} of run {self.run} ({self.owner})" if self.run else "another run"


class Busy(Reply):
    """A port in use: by a lease, or by a process."""

    port: Port
    holder: Lessee | Words | None

    @property
    def words(self) -> str:
        """Return its holder."""
        if isinstance(self.holder, Lessee):
            return self.holder.words
        return self.holder or "a process that this login may not see"


class Listening(Reply):
    listening: tuple[Port, ...]
    busy: tuple[Busy, ...]
    extra: Port | None = None


class Listen(Request[Listening]):
    """Listen on the task ports that are free; with `extra` also on one that the kernel chooses.

    Whoever sends `nonce` receives it back with the host's name, and `large` bytes.
    """

    run: str
    ports: Sequence[int]
    nonce: str
    host: str
    extra: bool = False
    large: int = 0

    def check(self, reply: Listening) -> None:
        named = [*reply.listening, *(busy.port for busy in reply.busy)]
        expect(sorted(named) == sorted(set(self.ports)), "it names other ports than it was asked for")


class Unlisten(Request[Nothing]):
    """Close what listens."""


class ProbeTarget(Value):
    host: str
    address: str
    port: int


class Probed(Reply):
    """Result of one connection."""

    host: Words
    tcp: bool
    tcp_ms: Seconds | None
    why: Words
    icmp: bool | None  # without a reply: whether the target answers a ping; None: not measurable
    resolved: Words = ""  # the numeric address that was tried last
    large: bool | None = None  # whether large packets arrive from there; None: not tried
    large_ms: Seconds | None = None


class Probes(Reply):
    results: tuple[Probed, ...]


class Probe(Request[Probes]):
    HEAD = 16 << 20
    nonce: str
    timeout: float
    targets: Sequence[ProbeTarget]
    large: int = 0  # bytes after the reply

    def check(self, reply: Probes) -> None:
        targets, hosts = ([item.host for item in items] for items in (self.targets, reply.results))
        expect(hosts == targets, "it tells of other hosts than it was asked for")


class Conflict(Lessee, kw_only=True):
    port: Port


class Leased(Reply):
    conflicts: tuple[Conflict, ...]


class Ahead(Reply):
    """An entry ahead in a machine's queue: a run that uses it, or waits for it."""

    since: Seconds  # since the epoch
    run: Words
    owner: Words


class InQueue(Reply):
    ahead: tuple[Ahead, ...]
    granted: bool


class JoinQueue(Request[InQueue]):
    """Wait in the queue since then, and with `go` take the machine if no run is ahead."""

    run: str
    owner: str
    machine: str  # a loopback address, each of which counts as a separate machine; otherwise nothing
    since: float
    go: bool


class Lease(Request[Leased]):
    """Lease these ports (as text, each with its task) for a run: all, or none."""

    run: str
    owner: str
    machine: str  # this and the next as in JoinQueue
    since: float
    ports: Mapping[str, str]

    def check(self, reply: Leased) -> None:
        named = {str(conflict.port) for conflict in reply.conflicts}
        expect(named <= set(self.ports), "it names other ports than it was asked for")


_Machine = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_]{1,32}\Z")]
_Libc = Annotated[str, Meta(pattern=r"\A(?:[a-z]{1,16} [0-9.]{1,16})?\Z")]
_Version = Annotated[str, Meta(pattern=r"\A[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\Z")]


class EnvLooked(Reply):
    ready: bool  # it is complete, and its Python runs
    machine: _Machine
    libc: _Libc  # "glibc 2.36"; "" for another one


class EnvLook(Request[EnvLooked]):
    workdir: str
    name: str


class Interpreter(Reply):
    path: Folder
    version: _Version


class EnvFind(Request[Interpreter]):
    """Find the interpreter that fits `python`, a version or a program, by the search of the uv at a path."""

    uv: str
    python: str


class EnvMade(Reply):
    versions: Mapping[Words, Words]  # as imported there; none if another request created it


class EnvMake(Request[EnvMade]):
    """Create an environment from the lock in the payload, from an index or a folder of wheels.

    With `ask_first` an index that does not answer one request is not waited for: there is another way.
    """

    workdir: str
    name: str
    uv: str
    interpreter: str
    index: str | None
    wheels: str | None
    ask_first: bool = False


class EnvSteps(Reply):
    step: Words
    done: Count  # bytes fetched, packages unpacked


class EnvProgress(Request[EnvSteps]):
    workdir: str
    name: str
