"""What a machine is like: preflight's questions, the mesh of port listeners, leases, GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from orchestrator.wire.fields import Count, Digest, Pid, Port, Real, Reply, Seconds, Signal, Size, Words
from orchestrator.wire.request import Nothing, Request, expect

_MANY = Meta(max_length=10_000)  # addresses of one machine


class Python(Reply, frozen=True):
    ok: bool
    path: Words | None
    version: Words | None
    error: Words
    managed: bool = False  # by the distribution: pip refuses to install into it (PEP 668)


class R(Reply, frozen=True):
    version: Words | None
    reticulate: Words | None
    jsonlite: Words | None
    error: Words


class Disk(Reply, frozen=True):
    free: Size


class Workdir(Reply, frozen=True):
    path: Words
    writable: bool
    error: Words
    free: Size


class Disks(Reply, frozen=True):
    state: Disk | None
    workdir: Workdir


class Gpu(Reply, frozen=True):
    index: Count
    name: Words


class Interface(Reply, frozen=True):
    """An address of the machine, and what carries it."""

    name: Words
    ip: Words


class MachineFacts(Reply, frozen=True):
    python: Python
    packages: dict[Words, Words | None]
    r: R | None
    rsync: Words | None
    disk: Disks
    gpus: tuple[Gpu, ...]
    ephemeral: tuple[Port, Port]
    kill_user_processes: bool | None
    ip: Annotated[tuple[Words, ...], _MANY]
    interfaces: Annotated[tuple[Interface, ...], _MANY] = ()
    gateways: Annotated[tuple[Words, ...], _MANY] = ()
    available: Size | None = None  # bytes of memory that a task could get
    shm: Size | None = None  # bytes free in /dev/shm
    cpus: Real = 0.0  # 0: not known
    load: Real = 0.0


class Facts(Request[MachineFacts], frozen=True, kw_only=True):
    OP = "facts"
    REPLY = MachineFacts
    python: str
    r: bool
    workdir: str
    packages: Sequence[str]
    setup: str | None


class HostFingerprint(Reply, frozen=True):
    """What a validation depends on, each part as a digest; the names are those that a person reads."""

    machine: Digest
    devices: Digest
    python: Digest
    packages: Digest
    environment: Digest
    data: Digest


class Fingerprint(Request[HostFingerprint], frozen=True, kw_only=True):
    OP = "fingerprint"
    REPLY = HostFingerprint
    python: str
    setup: str | None
    env: Mapping[str, str]
    data: Sequence[str]  # files and folders; ~ and variables are the node's


class Module(Reply, frozen=True):
    """A module that was imported, or why it could not be."""

    name: Words
    version: Words | None
    error: Words
    path: Words = ""


class Imported(Reply, frozen=True):
    modules: tuple[Module, ...]  # up to the first that fails
    limits: dict[Words, Count | None]  # nofile, as, nproc; None: unlimited
    gpus: Count | None  # that TensorFlow sees
    threads: Count | None  # that this user has on the machine
    importing: Words  # what was being imported when it ended
    ended: Words  # why it ended too early, "" when it did not
    signal: Signal | None  # that ended it, and was not ours


class Imports(Request[Imported], frozen=True, kw_only=True):
    """Import these modules as a task of the job would."""

    OP = "imports"
    REPLY = Imported
    python: str
    setup: str | None
    env: Mapping[str, str]
    modules: Sequence[str]
    gpus: bool = False

    def check(self, reply: Imported) -> None:
        expect({one.name for one in reply.modules} <= set(self.modules), "it imported what nobody asked for")


class ShareWrite(Request[Nothing], frozen=True, kw_only=True):
    """Leave the host's name in the working folder, for all that see the same one."""

    OP = "share_write"
    REPLY = Nothing
    workdir: str
    nonce: str
    host: str


class Sharers(Reply, frozen=True):
    hosts: tuple[Words, ...]


class ShareRead(Request[Sharers], frozen=True, kw_only=True):
    OP = "share_read"
    REPLY = Sharers
    workdir: str
    nonce: str


class ShareClean(Request[Nothing], frozen=True, kw_only=True):
    OP = "share_clean"
    REPLY = Nothing
    workdir: str
    nonce: str


class Lessee(Reply, frozen=True):
    """Whose lease it is; None: its holder has not written it yet, or it is another user's."""

    run: Words | None
    task: Words | None
    owner: Words | None
    since: Seconds | None = None

    @property
    def words(self) -> str:
        """`worker/0 of run r1 (ada@home)`."""
        if self.run is None:
            return f"a run of user {self.owner}" if self.owner else "another run"
        return f"{self.task} of run {self.run} ({self.owner})"


class Busy(Reply, frozen=True):
    """A port that somebody has: a lease, or the words of the process table."""

    port: Port
    holder: Lessee | Words | None

    @property
    def words(self) -> str:
        """Who has it."""
        if isinstance(self.holder, Lessee):
            return self.holder.words
        return self.holder or "a process that this login may not see"


class Listening(Reply, frozen=True):
    listening: tuple[Port, ...]
    busy: tuple[Busy, ...]
    extra: Port | None = None
    waits_for: Words | None = None  # the user whose preflight looks at one of the ports: it takes none then


class Listen(Request[Listening], frozen=True, kw_only=True):
    """Listen on the task ports that are free; with `extra` also on one that the kernel chooses."""

    OP = "listen"
    REPLY = Listening
    run: str
    ports: Sequence[int]
    nonce: str
    host: str
    extra: bool = False

    def check(self, reply: Listening) -> None:
        named = [*reply.listening, *(busy.port for busy in reply.busy)]
        wanted = [] if reply.waits_for is not None else sorted(set(self.ports))
        expect(sorted(named) == wanted, "it names other ports than it was asked for")


class Unlisten(Request[Nothing], frozen=True):
    OP = "unlisten"
    REPLY = Nothing


class ProbeTarget(Struct, frozen=True):
    host: str
    address: str
    port: int


class Probed(Reply, frozen=True):
    """What became of one connection."""

    host: Words
    tcp: bool
    tcp_ms: Seconds | None
    why: Words
    icmp: bool | None
    icmp_ms: Seconds | None
    resolved: Words = ""  # the numeric address that was tried last
    large_out: bool | None = None  # whether large packets arrive there; None: not tried
    large_back: bool | None = None  # and from there
    large_ms: Seconds | None = None
    packet: Count | None = None  # bytes of the largest packet on this connection


class Probes(Reply, frozen=True):
    results: tuple[Probed, ...]


class Probe(Request[Probes], frozen=True, kw_only=True):
    OP = "probe"
    REPLY = Probes
    HEAD = 16 << 20
    nonce: str
    timeout: float
    targets: Sequence[ProbeTarget]
    large: int = 0  # bytes that go each way after the answer

    def check(self, reply: Probes) -> None:
        asked = [target.host for target in self.targets]
        expect([one.host for one in reply.results] == asked, "it tells of other hosts than it was asked for")


class Rate(Reply, frozen=True):
    rate: Real | None  # bytes a second
    why: Words = ""


class Bandwidth(Request[Rate], frozen=True, kw_only=True):
    """Send to a host that listens, for a second at most."""

    OP = "bandwidth"
    REPLY = Rate
    SECONDS: ClassVar[float] = 1.0
    nonce: str
    target: ProbeTarget


class Conflict(Lessee, frozen=True, kw_only=True):
    port: Port


class Leased(Reply, frozen=True):
    conflicts: tuple[Conflict, ...]


class Lease(Request[Leased], frozen=True, kw_only=True):
    """Take these ports (as text, each with its task) for a run: all, or none."""

    OP = "lease"
    REPLY = Leased
    run: str
    owner: str
    ports: Mapping[str, str]

    def check(self, reply: Leased) -> None:
        named = {str(one.port) for one in reply.conflicts}
        expect(named <= set(self.ports), "it names other ports than it was asked for")


class GpuProcess(Reply, frozen=True):
    """A process that holds memory of a GPU."""

    pid: Pid
    name: Words
    memory: Size | None
    run: Words


class GpusHeld(Reply, frozen=True):
    held: tuple[GpuProcess, ...]


class GpuHeld(Request[GpusHeld], frozen=True, kw_only=True):
    """What of a run's ended tasks still holds memory of a GPU."""

    OP = "gpu_held"
    REPLY = GpusHeld
    run: str
