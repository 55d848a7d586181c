"""The nouns of the project as frozen data: host, job, task, plan. No I/O, no defaults from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """Task types of TF_CONFIG, in the order in which they are listed there."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"


@dataclass(frozen=True, order=True)
class TaskId:
    """One TensorFlow task: type and index, as in TF_CONFIG; written `worker/1`."""

    role: Role
    index: int

    def __str__(self) -> str:
        return f"{self.role.value}/{self.index}"

    @property
    def slug(self) -> str:
        """The same as a file name: `worker-1`."""
        return f"{self.role.value}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read `worker/1` or `worker-1`; raise ValueError otherwise."""
        role, _, index = text.replace("-", "/").partition("/")
        if not (index.isascii() and index.isdigit()):
            raise ValueError(f"not a task: {text!r} (a task is written worker/1)")
        return cls(Role(role), int(index))


@dataclass(frozen=True)
class Host:
    """An entry of hosts.toml, with every default filled in."""

    name: str
    ssh: str  # what `ssh` would be given (alias or address); "local" runs without SSH
    address: str  # how the other tasks reach it, without a port; IPv6 without brackets
    user: str | None = None  # None: ssh_config or the login name decides
    port: int | None = None  # the SSH port; None: ssh_config decides
    identity: str | None = None
    ssh_config: str | None = None  # instead of the user's and the system's, as `ssh -F`
    python: str = "python3"  # trains
    agent_python: str = "python3"  # runs our agent; needs only the standard library
    workdir: str = "~/orchestrate"  # trees and runs; may be on a shared home
    state: str | None = None  # locks, state, logs; local disk; None: /var/tmp/orchestrate-<uid>
    task_port: int = 2222  # of its first task; the others count up
    tasks: int = 1
    role: Role = Role.WORKER
    devices: tuple[str, ...] | None = None  # GPU indexes or UUIDs, shared out over its tasks
    spare: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


class OnHang(StrEnum):
    """What follows when tasks hang, and their stacks are taken."""

    REPORT = "report"  # nothing: a person decides
    STOP = "stop"  # the run ends as failed, whatever --max-restarts says
    RESTART = "restart"  # the attempt has failed, as if a task had


@dataclass(frozen=True)
class Job:
    """The [job] table: what runs on every host."""

    command: tuple[str, ...] = ()  # empty: worker_entry
    setup: str | None = None  # shell text, run by `bash -lc` before the command
    env: Mapping[str, str] = field(default_factory=dict)
    forward: tuple[str, ...] = ()  # names taken from the controller's environment
    secrets: tuple[str, ...] = ()  # the same, and never stored or shown
    grace: float = 30.0  # seconds between TERM and KILL at a user's stop
    failure_grace: float = 2.0  # the same, after a failure
    lifeline: float = 3600.0  # seconds without a keeper after which ps tasks end
    ignore: tuple[str, ...] = ()  # gitignore patterns, beside .gitignore and .orchestrateignore
    validate: str | None = None  # a command line of the user's own instead of the built-in step
    hang_timeout: float = 0.0  # seconds without a word, after which tasks count as hanging; 0: never
    on_hang: OnHang = OnHang.RESTART
    stacks: bool = True  # Pythons of tasks show their stacks on a signal
    legacy_keras: bool | None = None  # TF_USE_LEGACY_KERAS; None: unless the script imports keras itself
    max_restarts: int = 0  # attempts after a failed one
    min_hosts: int | None = None  # go on with as few hosts when no spare is left; None: with none missing
    host_timeout: float = 300.0  # seconds a host may stay lost before an attempt goes on without it
    backup: str | None = None  # a folder that the first task's host has and every host needs at a restart


@dataclass(frozen=True)
class Inventory:
    hosts: tuple[Host, ...]
    job: Job = field(default_factory=Job)
    source: str = "hosts.toml"


class Completion(StrEnum):
    """When a run is done: parameter servers and their workers never exit by themselves."""

    ALL = "all"  # every task exited 0
    CHIEF = "chief"  # the chief exited 0; the others are then stopped, which is success


@dataclass(frozen=True)
class TaskSpec:
    """One task, ready to be sent to a node as data."""

    id: TaskId
    host: str
    port: int
    argv: tuple[str, ...]
    env: Mapping[str, str]  # public part; secrets are joined when it is sent
    setup: str | None = None


@dataclass(frozen=True)
class Recipe:
    """What the tasks are made of, whichever hosts they sit on."""

    forwarded: Mapping[str, str] = field(default_factory=dict)  # of the controller's environment
    job_env: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)  # of the command line
    legacy_keras: str | None = None  # why Keras 2 is chosen; None: it is not
    setup: str | None = None


@dataclass(frozen=True)
class Restarts:
    """What is done about an attempt that failed."""

    most: int = 0  # attempts after the first one
    min_hosts: int | None = None
    host_timeout: float = Job.host_timeout
    backup: str | None = None


@dataclass(frozen=True)
class Admission:
    """What a host goes through before tasks start on it: at first, and when it joins a later attempt."""

    preflight: bool = True
    validate: bool = True  # it has to train alone
    validate_command: str | None = None  # the user's own; None: the built-in step
    other_ports: bool = False  # it takes other ports where the wanted ones are held


@dataclass(frozen=True)
class Preparing:
    """What an attempt still needs before its tasks may start; a new keeper has to know it too."""

    leader: str = ""  # had the first task when tasks were last started, and so the newest backup
    stands_in: Mapping[str, str] = field(default_factory=dict)  # host, not examined yet -> whose place


@dataclass(frozen=True)
class RunPlan:
    """Everything about a run that may be stored and shown; a later attempt may need another plan."""

    run: str  # id
    name: str  # the user's --name, or ""
    owner: str  # user@controller
    created: float  # seconds since the epoch
    hosts: tuple[Host, ...]  # those with tasks, in inventory order
    cluster: Mapping[str, tuple[str, ...]]  # role -> host:port, as in TF_CONFIG
    tasks: tuple[TaskSpec, ...]
    command: tuple[str, ...]  # as the user gave it
    completion: Completion
    grace: float
    failure_grace: float
    lifeline: float
    secrets: tuple[str, ...]  # names only
    recipe: Recipe = field(default_factory=Recipe)
    restarts: Restarts = field(default_factory=Restarts)
    admission: Admission = field(default_factory=Admission)
    notes: tuple[str, ...] = ()  # what the tool set by itself, said to the user
    hang_timeout: float = 0.0
    on_hang: OnHang = OnHang.RESTART
    stacks: bool = True
    spares: tuple[Host, ...] = ()  # as the inventory has them; those that were not needed yet
    retired: tuple[Host, ...] = ()  # had tasks in an earlier attempt: something of the run may be left there
    unfit: tuple[str, ...] = ()  # spares that were found unable to stand in
    attempt: int = 1  # the first one that this plan is for
    preparing: Preparing = Preparing()
    tree: str = ""  # digest of the code that runs, once it is on the hosts

    def host(self, name: str) -> Host:
        return next(host for host in (*self.hosts, *self.spares, *self.retired) if host.name == name)

    def task(self, task: TaskId) -> TaskSpec:
        return next(spec for spec in self.tasks if spec.id == task)
