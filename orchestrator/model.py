"""The project's data types, frozen: host, job, task, plan. No I/O; all their defaults are here."""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Mapping
from enum import StrEnum

from msgspec.structs import replace

from orchestrator import quoting
from orchestrator.value import Value


class Role(StrEnum):
    """Task types of TF_CONFIG, in the order in which they appear there."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"
    SERVICE = (
        "service"  # not TensorFlow's: a helper such as tf.data service, which needs a command of its own
    )


OUTSIDE = (Role.EVALUATOR, Role.SERVICE)  # not in the cluster of TF_CONFIG, and not counted in its ranks


LOCAL = "local"  # a host that is this machine
DEFAULT_PYTHON = "python3"
DEFAULT_WORKDIR = "~/orchestrate"
DEFAULT_PORT = 2222


class Way(StrEnum):
    """The transport to a host."""

    AUTO = "auto"  # paramiko, or OpenSSH where only that can connect
    PARAMIKO = "paramiko"
    OPENSSH = "openssh"
    SRUN = "srun"  # a step of the Slurm job that this process runs in


class Engine(StrEnum):
    """Programs that run containers."""

    PODMAN = "podman"
    DOCKER = "docker"
    APPTAINER = "apptainer"


MAX_PORT = 65535


class TaskId(Value, order=True):
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
            raise ValueError(f"not a task: {text!r}, such as worker/1")
        return cls(Role(role), int(index))


class Host(Value):
    """An entry of hosts.toml with every default filled in."""

    name: str
    ssh: str  # the argument for `ssh` (alias or address); LOCAL runs without SSH
    address: str  # how the other tasks reach it, without a port; IPv6 without brackets
    user: str | None = None  # None: ssh_config or the login name decides
    port: int | None = None  # the SSH port; None: ssh_config decides
    identity: str | None = None
    ssh_config: str | None = None  # instead of the user's and the system's, as with `ssh -F`
    via: Way | tuple[str, ...] = Way.AUTO  # a tuple: a command of the user's, with {host} in it
    job: str = ""  # the Slurm job whose steps lead to it; "": the current one, with via = "srun"
    python: str = DEFAULT_PYTHON  # runs the training
    agent_python: str = DEFAULT_PYTHON  # runs our agent; needs only the standard library
    workdir: str = DEFAULT_WORKDIR  # code and runs; may be on a shared home
    state: str | None = None  # locks, state, logs; local disk; None: /var/tmp/orchestrate-<uid>
    task_port: int = DEFAULT_PORT  # of its first task; the others count up
    tasks: int = 1
    role: Role = Role.WORKER
    devices: tuple[str, ...] | None = None  # GPU indexes or UUIDs, divided among its tasks
    spare: bool = False
    env: Mapping[str, str] = {}
    container: str = ""  # an image: the agent and what it starts run in a container of it; "": they do not
    container_args: tuple[str, ...] = ()  # more options of the engine's `run`
    container_engine: Engine | None = None  # None: whichever the host has
    command: tuple[str, ...] = ()  # its own, or its role's; (): that of the launch
    args: tuple[str, ...] = ()  # added to either

    @property
    def is_local(self) -> bool:
        """Return True for this machine, which needs no SSH."""
        return self.ssh == LOCAL

    def by_hand(self, *command: str) -> str:
        """Return how a person logs in or runs a command there, for hints."""
        anything = command or ("date",)
        if self.is_local:
            return shlex.join(anything)
        if self.via is Way.SRUN:
            job = [f"--jobid={self.job}"] if self.job else []
            return shlex.join(["srun", "--overlap", *job, "-w", self.ssh, *anything])
        if isinstance(self.via, tuple):
            return shlex.join([*self.client(self.via), shlex.join(anything)])
        given = {"-F": self.ssh_config, "-i": self.identity, "-p": self.port}
        flags = [f"{flag} {quoting.path(str(value))}" for flag, value in given.items() if value is not None]
        login = f"{self.user}@{self.ssh}" if self.user else self.ssh
        return " ".join(["ssh", *flags, shlex.join([login, *command])])

    def client(self, via: tuple[str, ...]) -> list[str]:
        """Return a command of the user's that leads to a shell there."""
        return [word.replace("{host}", self.ssh) for word in via]


class OnHang(StrEnum):
    """Reactions to hanging tasks, after their stacks are collected."""

    REPORT = "report"  # nothing: a person decides
    STOP = "stop"  # the run ends as failed, whatever --max-restarts says
    RESTART = "restart"  # the attempt fails, as if a task had failed


class Order(StrEnum):
    """Requests of a viewer to a run's keeper."""

    STOP = "stop"
    KILL = "kill"  # without the grace period
    TYPE = "type"  # keyboard input for the task that has a terminal
    VITALS = "vitals"  # current activity of the tasks, while a viewer is connected


class Revalidate(StrEnum):
    """When local validation runs before the tasks start on a host."""

    ALWAYS = "always"
    CHANGED = "changed"  # unless it passed within a day and has not changed since
    NEVER = "never"


class FrameworkName(StrEnum):
    AUTO = "auto"  # the program shows which
    TENSORFLOW = "tensorflow"
    TORCH = "torch"
    JAX = "jax"
    NONE = "none"  # any program: it receives its rank, and its code is not examined


class AutoShard(StrEnum):
    """How workers share a data set whose policy is AutoShardPolicy.AUTO."""

    AUTO = "auto"  # DATA if there are fewer files than workers, otherwise TensorFlow's choice
    DATA = "data"  # each worker reads everything and keeps its share
    OFF = "off"  # TensorFlow's choice


class Conduct(Value, kw_only=True):
    """Settings of [job] for how tasks run and end, copied unchanged into the run's plan."""

    secrets: tuple[str, ...] = ()  # names of variables in the launch's environment; values are never stored
    grace: float = 30.0  # seconds between TERM and KILL when a user stops the run
    failure_grace: float = 2.0  # the same after a failure
    lifeline: float = 3600.0  # seconds without a keeper after which ps tasks end
    evaluator_timeout: float = 300.0  # seconds that an evaluator has after the last task that trains
    hang_timeout: float = 0.0  # seconds without output after which tasks count as hanging; 0: never
    on_hang: OnHang = OnHang.RESTART
    stacks: bool = True  # tasks' Pythons print their stacks on a signal
    keep_warm: float = 0.0  # seconds after a run in which its imports stay in memory for the next launch


class Job(Conduct, kw_only=True):
    """The [job] table: what runs on every host."""

    command: tuple[str, ...] = ()  # empty: worker_entry
    setup: str | None = None  # shell text that `bash -lc` runs before the command
    env: Mapping[str, str] = {}
    code: str | None = None  # the folder to send; None: the top of the git repository, or this folder
    ignore: tuple[str, ...] = ()  # gitignore patterns, in addition to .gitignore and .orchestrateignore
    validate: str | None = None  # a user's own command line instead of the built-in step
    validation: Revalidate | None = None  # None: when something changed; always for a user's own command
    framework: FrameworkName = FrameworkName.AUTO
    legacy_keras: bool | None = None  # tf.keras is Keras 2; None: unless the program uses Keras 3
    repair_keras: bool = True  # repair what is broken in Keras for several tasks
    auto_shard: AutoShard = AutoShard.AUTO
    tf_config: bool | None = None  # also with a single task; None: if the program reads it
    max_restarts: int = 0  # attempts after a failed one
    min_hosts: int | None = None  # continue with this few when no spare is left; None: only with all
    host_timeout: float = 300.0  # seconds that a host may stay lost before an attempt continues without it
    backup: str | None = None  # a folder on the first task's host that every host needs after a restart
    notify: tuple[str, ...] = ()  # runs on the controller when the run has ended; never part of a plan


class Via(StrEnum):
    """Where a host gets the packages of its environment from."""

    AUTO = "auto"  # the package index if the host reaches it, otherwise the controller
    NODE = "node"  # the package index or a mirror, by the host itself
    CONTROLLER = "controller"  # wheels that the controller downloads once and sends


class Environment(Value):
    """The [env] table: the Python environment that `setup` creates on every host."""

    requirements: str | None = None  # a requirements file, a lock or a pyproject.toml on this machine
    packages: tuple[str, ...] = ()  # requirement lines
    extras: tuple[str, ...] = ()  # of the pyproject.toml or uv.lock
    python: str | None = None  # a version or an interpreter; None: any that the packages support
    index: str | None = None  # URL of a package index that replaces the default
    via: Via = Via.AUTO


class EnvironmentPlan(Value):
    """How to create the environment of a run's hosts, in later attempts too."""

    name: str  # the hash of its lock: <workdir>/envs/<name>
    python: str | None = None
    index: str | None = None
    via: Via = Via.AUTO


def environment_name(host: Host, plan: EnvironmentPlan) -> str:
    """Return the environment's name on a host; in a container it differs: the image's Python creates it."""
    return f"{plan.name}-{zlib.crc32(host.container.encode()):08x}" if host.container else plan.name


def interpreter(host: Host, plan: EnvironmentPlan) -> str:
    """Return the environment's Python on a host, where `~` is expanded."""
    return f"{host.workdir}/envs/{environment_name(host, plan)}/bin/python"


def in_environment(host: Host, plan: EnvironmentPlan) -> Host:
    """Return a host with the environment's Python, unless it names one of its own."""
    return replace(host, python=interpreter(host, plan)) if host.python == DEFAULT_PYTHON else host


class Data(Value):
    """The [data] table: what tasks read, and where it is on this machine."""

    sets: tuple[str, ...] = ()  # of tensorflow-datasets: "mnist", "my_dataset:1.0.0"
    paths: tuple[str, ...] = ()  # folders and files on this machine
    keras: tuple[str, ...] = ()  # files that keras.datasets would download: "mnist.npz"
    tfds_dir: str | None = None  # the folder of prepared data sets; None: tensorflow-datasets' default


class Kubernetes(Value):
    """The [export.kubernetes] table: what a cluster needs in addition to the run's plan."""

    image: str | None = None  # with Python and the program's packages; None: export is not possible
    namespace: str | None = None  # None: the default of the user who applies the files
    claim: str | None = None  # a PersistentVolumeClaim for what tasks write; None: it ends with its pod
    cpu: str | None = None  # of each pod, in Kubernetes' notation; None: the namespace's defaults
    memory: str | None = None


class Inventory(Value):
    hosts: tuple[Host, ...]
    job: Job = Job()
    source: str = "hosts.toml"
    environment: Environment | None = None  # the [env] table; None: the user creates environments
    data: Data | None = None  # the [data] table; None: the user provides the data
    kubernetes: Kubernetes = Kubernetes()


class Completion(StrEnum):
    """When a run is complete; parameter servers and their workers never exit by themselves."""

    ALL = "all"  # every task exited with 0
    CHIEF = "chief"  # the chief exited with 0; the others are then stopped, which is a success


class TaskSpec(Value):
    """One task as data, ready to be sent to a node."""

    id: TaskId
    host: str
    port: int
    argv: tuple[str, ...]
    env: Mapping[str, str]  # without secrets, which are added when it is sent
    setup: str | None = None


class Terminal(Value):
    """The terminal of a task: its size, and its type as in TERM."""

    task: TaskId
    rows: int
    columns: int
    kind: str


class Recipe(Value):
    """Everything about a run's tasks that does not depend on their hosts."""

    job_env: Mapping[str, str] = {}
    env: Mapping[str, str] = {}  # of the command line
    framework: FrameworkName = FrameworkName.TENSORFLOW  # AUTO: unknown
    legacy_keras: str | None = None  # why Keras 2 is chosen; None: it is not
    keras_of: tuple[str, ...] = ()  # modules of the program, any of which may be built on Keras 3
    repair_keras: bool = False
    auto_shard: AutoShard = AutoShard.OFF
    tf_config: bool = True  # also with a single task
    tuner: bool = False  # tasks share a Keras Tuner search; the first one is its chief
    standalone: bool = False  # torchrun trains on each host separately
    setup: str | None = None


class Restarts(Value):
    """Rules for restarts after a failed attempt."""

    most: int = 0  # attempts after the first one
    min_hosts: int | None = None
    host_timeout: float = Job().host_timeout
    backup: str | None = None


class Admission(Value):
    """Steps for a host before tasks start on it, in the first attempt or when it joins a later one."""

    preflight: bool = True
    validate: bool = True  # local validation is required
    recall: bool = False  # unless it passed in an earlier launch and has not changed since
    validate_command: str | None = None  # the user's own; None: the built-in step
    other_ports: bool = False  # uses other ports if the requested ones are taken
    wait: bool = False  # waits in the queue for hosts that other runs use


class Resumed(Value):
    """The run that another one continues."""

    run: str  # whose working folders are used: the first of all that were continued
    seats: Mapping[str, str]  # task -> its host
    leader: str  # the host of the first task
    trees: tuple[str, ...] = ()  # digests of the code that ran there


class Preparing(Value):
    """Requirements of an attempt before its tasks may start; a new keeper needs them too."""

    leader: str = ""  # hosted the first task when tasks last started, so it has the newest backup
    stands_in: Mapping[str, str] = {}  # host, not examined yet -> the host it replaces


class Preset(Value):
    """A variable that a program sets before its imports."""

    name: str
    value: str
    default: bool = False  # only where it is not set


class EarlyImports(Value):
    """Modules that a program imports first, in its order; `a/b` is `from a import b`."""

    imports: tuple[str, ...] = ()
    preset: tuple[Preset, ...] = ()
    why: str = ""  # there are none


class RunPlan(Conduct, kw_only=True):
    """Everything about a run that may be stored and shown; a later attempt may need another plan."""

    run: str  # id
    name: str  # the user's --name, or ""
    owner: str  # user@controller
    created: float  # seconds since the epoch
    hosts: tuple[Host, ...]  # those with tasks, in inventory order
    cluster: Mapping[str, tuple[str, ...]]  # role -> host:port, as in TF_CONFIG
    tasks: tuple[TaskSpec, ...]
    command: tuple[str, ...]  # as the user entered it
    completion: Completion
    recipe: Recipe = Recipe()
    restarts: Restarts = Restarts()
    admission: Admission = Admission()
    notes: tuple[str, ...] = ()  # settings that orchestrate chose by itself, shown to the user
    if_shared: tuple[str, ...] = ()  # further notes, for hosts that turn out to share their work folder
    # Findings in its arguments ("") and its code (file and line), which only the launching machine has.
    own_paths: Mapping[str, str] = {}
    terminal: Terminal | None = None  # the task that a viewer is attached to
    spares: tuple[Host, ...] = ()  # spares in inventory order, unused so far
    retired: tuple[Host, ...] = ()  # had tasks in an earlier attempt, so parts of the run may remain there
    unfit: tuple[str, ...] = ()  # spares that turned out to be unusable
    attempt: int = 1  # the first attempt that this plan applies to
    preparing: Preparing = Preparing()
    cwd: str = ""  # the folder in the code where tasks run; "" is its top
    tree: str = ""  # digest of the running code, once it is on the hosts
    environment: EnvironmentPlan | None = None  # what `[env]` requires; None: the user creates environments
    resumed: Resumed | None = None  # by `--continue`
    data: Data | None = None  # what `[data]` names; None: the user provides the data
    data_digest: str = ""  # the digest of that, once the hosts have it
    ahead: EarlyImports = EarlyImports()  # what its program imports first
    # Why this machine does not vouch for it ("" for our own plans): nodes sent it, so nothing starts from it.
    untrusted: str = ""

    @property
    def folder(self) -> str:
        """Return the run whose working folder the tasks use."""
        return self.resumed.run if self.resumed else self.run

    @property
    def leader(self) -> TaskSpec:
        """Return the chief, else the first worker, who saves for all; any task where none trains."""
        return min(self.tasks, key=lambda spec: list(Role).index(spec.id.role))

    @property
    def members(self) -> tuple[Host, ...]:
        """Return every host in the plan."""
        return (*self.hosts, *self.spares, *self.retired)

    def host(self, name: str) -> Host:
        return next(host for host in self.members if host.name == name)

    def task(self, task: TaskId) -> TaskSpec:
        return next(spec for spec in self.tasks if spec.id == task)

    def tasks_on(self, host: str) -> list[TaskSpec]:
        return [spec for spec in self.tasks if spec.host == host]
