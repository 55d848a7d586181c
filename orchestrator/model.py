"""The nouns of the project as frozen data: host, job, task, plan. No I/O, no defaults from outside."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from orchestrator import quoting


class Role(StrEnum):
    """Task types of TF_CONFIG, in the order in which they are listed there."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"


LOCAL = "local"  # a host that is this machine
DEFAULT_PYTHON = "python3"
DEFAULT_WORKDIR = "~/orchestrate"
DEFAULT_PORT = 2222


class Way(StrEnum):
    """The carrier of the bytes to a host and back."""

    AUTO = "auto"  # paramiko, or OpenSSH where only that can connect
    PARAMIKO = "paramiko"
    OPENSSH = "openssh"
    SRUN = "srun"  # a step of the Slurm job that this process is in


MAX_PORT = 65535


class TaskId(Struct, frozen=True, order=True):
    """One task of a run: type and index, as in TF_CONFIG; written `worker/1`."""

    role: Role
    index: int

    def __str__(self) -> str:
        return f"{self.role.value}/{self.index}"

    @property
    def slug(self) -> str:
        """Return the name as a file name: `worker-1`."""
        return f"{self.role.value}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read `worker/1` or `worker-1`; raise ValueError otherwise."""
        role, _, index = text.replace("-", "/").partition("/")
        if not (index.isascii() and index.isdigit()):
            raise ValueError(f"not a task: {text!r} (a task is written worker/1)")
        return cls(Role(role), int(index))


class Host(Struct, frozen=True):
    """An entry of hosts.toml, with every default filled in."""

    name: str
    ssh: str  # what `ssh` would be given (alias or address); LOCAL runs without SSH
    address: str  # how the other tasks reach it, without a port; IPv6 without brackets
    user: str | None = None  # None: ssh_config or the login name decides
    port: int | None = None  # the SSH port; None: ssh_config decides
    identity: str | None = None
    ssh_config: str | None = None  # instead of the user's and the system's, as `ssh -F`
    via: Way | tuple[str, ...] = Way.AUTO  # a tuple: a command of the user's, with {host} in it
    job: str = ""  # the Slurm job whose steps lead to it; "": the one that we are in, with via = "srun"
    python: str = DEFAULT_PYTHON  # trains
    agent_python: str = DEFAULT_PYTHON  # runs our agent; needs only the standard library
    workdir: str = DEFAULT_WORKDIR  # trees and runs; may be on a shared home
    state: str | None = None  # locks, state, logs; local disk; None: /var/tmp/orchestrate-<uid>
    task_port: int = DEFAULT_PORT  # of its first task; the others count up
    tasks: int = 1
    role: Role = Role.WORKER
    devices: tuple[str, ...] | None = None  # GPU indexes or UUIDs, shared out over its tasks
    spare: bool = False
    env: Mapping[str, str] = {}

    @property
    def is_local(self) -> bool:
        """Return True for this machine, which needs no SSH."""
        return self.ssh == LOCAL

    def by_hand(self, *words: str) -> str:
        """How a person logs in there with OpenSSH, or runs a command there: for hints."""
        given = {"-F": self.ssh_config, "-i": self.identity, "-p": self.port}
        flags = [f"{flag} {quoting.path(str(value))}" for flag, value in given.items() if value is not None]
        login = f"{self.user}@{self.ssh}" if self.user else self.ssh
        return " ".join(["ssh", *flags, shlex.join([login, *words])])


class OnHang(StrEnum):
    """Consequences when tasks hang, and their stacks are taken."""

    REPORT = "report"  # nothing: a person decides
    STOP = "stop"  # the run ends as failed, whatever --max-restarts says
    RESTART = "restart"  # the attempt has failed, as if a task had


class Order(StrEnum):
    """Orders of a viewer to a run's keeper."""

    STOP = "stop"
    KILL = "kill"  # without grace
    TYPE = "type"  # into the task that has a terminal
    VITALS = "vitals"  # what the tasks do now: somebody looks


class Revalidate(StrEnum):
    """When a host has to train alone before the tasks start on it."""

    ALWAYS = "always"
    CHANGED = "changed"  # unless it did within a day, and is as it was then
    NEVER = "never"


class FrameworkName(StrEnum):
    AUTO = "auto"  # as the program shows
    TENSORFLOW = "tensorflow"
    TORCH = "torch"
    JAX = "jax"
    NONE = "none"  # any program: it is told its rank, and nothing of it is examined


class AutoShard(StrEnum):
    """Ways to share a data set among workers whose policy is AutoShardPolicy.AUTO."""

    AUTO = "auto"  # as DATA where there are fewer files than workers, else as TensorFlow does
    DATA = "data"  # each worker reads all and keeps its share
    OFF = "off"  # as TensorFlow does


class Conduct(Struct, frozen=True, kw_only=True):
    """Settings of [job] for how tasks run and end; the plan of a run has them as they are."""

    secrets: tuple[str, ...] = ()  # names of variables of the launch's environment; values are never stored
    grace: float = 30.0  # seconds between TERM and KILL at a user's stop
    failure_grace: float = 2.0  # the same, after a failure
    lifeline: float = 3600.0  # seconds without a keeper after which ps tasks end
    hang_timeout: float = 0.0  # seconds without a word, after which tasks count as hanging; 0: never
    on_hang: OnHang = OnHang.RESTART
    stacks: bool = True  # Pythons of tasks show their stacks on a signal


class Job(Conduct, frozen=True, kw_only=True):
    """The [job] table: what runs on every host."""

    command: tuple[str, ...] = ()  # empty: worker_entry
    setup: str | None = None  # shell text, run by `bash -lc` before the command
    env: Mapping[str, str] = {}
    code: str | None = None  # the folder that is sent; None: the top of the git repository, else here
    ignore: tuple[str, ...] = ()  # gitignore patterns, beside .gitignore and .orchestrateignore
    validate: str | None = None  # a command line of the user's own instead of the built-in step
    validation: Revalidate | None = None  # None: changed; always with a command of the user's own
    framework: FrameworkName = FrameworkName.AUTO
    legacy_keras: bool | None = None  # tf.keras is Keras 2; None: unless the program shows Keras 3
    repair_keras: bool = True  # change what is wrong in Keras for several tasks
    auto_shard: AutoShard = AutoShard.AUTO
    tf_config: bool | None = None  # also for one task; None: if the program reads it
    max_restarts: int = 0  # attempts after a failed one
    min_hosts: int | None = None  # go on with as few hosts when no spare is left; None: with none missing
    host_timeout: float = 300.0  # seconds a host may stay lost before an attempt goes on without it
    backup: str | None = None  # a folder that the first task's host has and every host needs at a restart
    notify: tuple[str, ...] = ()  # run on the controller when the run has ended; never part of a plan


class Via(StrEnum):
    """Where a host gets the packages of its environment from."""

    AUTO = "auto"  # the package index, where the host reaches it; else the controller
    NODE = "node"  # the package index, or a mirror, by the host itself
    CONTROLLER = "controller"  # wheels that the controller downloads once and sends


class Environment(Struct, frozen=True):
    """The [env] table: the Python environment that `setup` makes on every host."""

    requirements: str | None = None  # a requirements file, a lock or a pyproject.toml of this machine
    packages: tuple[str, ...] = ()  # requirement lines
    extras: tuple[str, ...] = ()  # of the pyproject.toml or uv.lock
    python: str | None = None  # a version or an interpreter; None: any that the packages run on
    index: str | None = None  # URL of a package index, in place of the default one
    via: Via = Via.AUTO


class EnvironmentPlan(Struct, frozen=True):
    """The recipe of the environment of a run's hosts, on later attempts too."""

    name: str  # of the lock that it is made from: <workdir>/envs/<name>
    python: str | None = None
    index: str | None = None
    via: Via = Via.AUTO


def interpreter(host: Host, plan: EnvironmentPlan) -> str:
    """The Python of the environment on a host, where `~` is expanded."""
    return f"{host.workdir}/envs/{plan.name}/bin/python"


class Data(Struct, frozen=True):
    """The [data] table: what tasks read, and where it is on this machine."""

    sets: tuple[str, ...] = ()  # of tensorflow-datasets: "mnist", "my_dataset:1.0.0"
    paths: tuple[str, ...] = ()  # folders and files of this machine
    keras: tuple[str, ...] = ()  # files that keras.datasets would download: "mnist.npz"
    tfds_dir: str | None = None  # where this machine has prepared sets; None: tensorflow-datasets' own place


class Kubernetes(Struct, frozen=True):
    """The [export.kubernetes] table: what a cluster has to be told beside the plan of a run."""

    image: str | None = None  # with Python and the packages of the program; None: nothing can be exported
    namespace: str | None = None  # None: the one of whoever applies the files
    claim: str | None = None  # a PersistentVolumeClaim for what tasks write; None: it ends with its pod
    cpu: str | None = None  # of each pod, as Kubernetes writes it; None: whatever the namespace gives
    memory: str | None = None


class Inventory(Struct, frozen=True):
    hosts: tuple[Host, ...]
    job: Job = Job()
    source: str = "hosts.toml"
    environment: Environment | None = None  # the [env] table; None: the user makes environments
    data: Data | None = None  # the [data] table; None: data is the user's own affair
    kubernetes: Kubernetes = Kubernetes()


class Completion(StrEnum):
    """When a run is done: parameter servers and their workers never exit by themselves."""

    ALL = "all"  # every task exited 0
    CHIEF = "chief"  # the chief exited 0; the others are then stopped, which is success


class TaskSpec(Struct, frozen=True):
    """One task, ready to be sent to a node as data."""

    id: TaskId
    host: str
    port: int
    argv: tuple[str, ...]
    env: Mapping[str, str]  # public part; secrets are joined when it is sent
    setup: str | None = None


class Terminal(Struct, frozen=True):
    """The terminal of a task: its size, and its kind as TERM has it."""

    task: TaskId
    rows: int
    columns: int
    kind: str


class Recipe(Struct, frozen=True):
    """The material of tasks, whichever hosts they sit on."""

    job_env: Mapping[str, str] = {}
    env: Mapping[str, str] = {}  # of the command line
    framework: FrameworkName = FrameworkName.TENSORFLOW  # AUTO: none is known
    legacy_keras: str | None = None  # why Keras 2 is chosen; None: it is not
    keras_of: tuple[str, ...] = ()  # modules of the program, one of which may be built on Keras 3
    repair_keras: bool = False
    auto_shard: AutoShard = AutoShard.OFF
    tf_config: bool = True  # also for one task
    tuner: bool = False  # tasks share out a search of Keras Tuner: the first is its chief
    setup: str | None = None


class Restarts(Struct, frozen=True):
    """Rules for an attempt that failed."""

    most: int = 0  # attempts after the first one
    min_hosts: int | None = None
    host_timeout: float = Job().host_timeout
    backup: str | None = None


class Admission(Struct, frozen=True):
    """The steps of a host before tasks start on it: at first, and when it joins a later attempt."""

    preflight: bool = True
    validate: bool = True  # it has to train alone
    recall: bool = False  # unless it did in an earlier launch, and is as it was then
    validate_command: str | None = None  # the user's own; None: the built-in step
    other_ports: bool = False  # it takes other ports where the wanted ones are held
    wait: bool = False  # it stands in line for hosts that other runs have


class Preparing(Struct, frozen=True):
    """Needs of an attempt before its tasks may start; a new keeper has to know it too."""

    leader: str = ""  # had the first task when tasks were last started, and so the newest backup
    stands_in: Mapping[str, str] = {}  # host, not examined yet -> whose place


class RunPlan(Conduct, frozen=True, kw_only=True):
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
    recipe: Recipe = Recipe()
    restarts: Restarts = Restarts()
    admission: Admission = Admission()
    notes: tuple[str, ...] = ()  # what the tool set by itself, said to the user
    if_shared: tuple[str, ...] = ()  # more notes, for hosts that turn out to share their working folder
    # Of its arguments ("") and in its code (file and line), which the machine of the launch has.
    own_paths: Mapping[str, str] = {}
    terminal: Terminal | None = None  # of the task that somebody is attached to
    spares: tuple[Host, ...] = ()  # as the inventory has them; those that were not needed yet
    retired: tuple[Host, ...] = ()  # had tasks in an earlier attempt: something of the run may be left there
    unfit: tuple[str, ...] = ()  # spares that were found unable to stand in
    attempt: int = 1  # the first one that this plan is for
    preparing: Preparing = Preparing()
    cwd: str = ""  # where in the code the tasks run; "" is its top
    tree: str = ""  # digest of the code that runs, once it is on the hosts
    environment: EnvironmentPlan | None = None  # what `[env]` asks for; None: environments are the user's
    data: Data | None = None  # what `[data]` names; None: data is the user's
    data_digest: str = ""  # of that, once the hosts have it
    # Why nobody here vouches for it ("" for our own): nodes told it, and nothing is started by it.
    hearsay: str = ""

    @property
    def members(self) -> tuple[Host, ...]:
        """Every host that the plan knows."""
        return (*self.hosts, *self.spares, *self.retired)

    def host(self, name: str) -> Host:
        return next(host for host in self.members if host.name == name)

    def task(self, task: TaskId) -> TaskSpec:
        return next(spec for spec in self.tasks if spec.id == task)

    def tasks_on(self, host: str) -> list[TaskSpec]:
        return [spec for spec in self.tasks if spec.host == host]
