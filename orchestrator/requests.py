"""Requests to the verbs as frozen, typed values, with every default. No I/O."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from orchestrator.errors import UsageError
from orchestrator.model import Inventory, Job, Revalidate, Terminal
from orchestrator.text import READING
from orchestrator.value import Value

_NAME = 100  # characters at most
MOST = 999_999  # for any count
LONGEST = 365 * 86_400.0  # seconds
_T = TypeVar("_T", bound=Struct)


class Selection(Value):
    """The hosts to use, as `--hosts`, `--only` and `--exclude` select them."""

    hosts: str | None = None
    only: str | None = None
    exclude: str | None = None


class LaunchRequest(Value, kw_only=True):
    """A launch. None means that [job] decides."""

    inventory: Inventory
    command: tuple[str, ...] = ()
    name: str = ""
    code: str | None = None
    env: Mapping[str, str] = {}
    max_restarts: int | None = None
    min_hosts: int | None = None
    spares: int | None = None
    hang_timeout: float | None = None
    keep_warm: float | None = None
    preflight: bool = True
    validate: Revalidate | None = None
    notify: str | None = None
    replay: str | None = None  # the ID of the run to repeat
    continues: str | None = None  # the run in whose working folders to start
    other_ports: bool = False
    wait: bool = False
    terminal: Terminal | None = None  # for the task that it names

    def __post_init__(self) -> None:
        check_texts([*self.command, *self.env, *self.env.values(), *filter(None, (self.name, self.code))])
        if self.name and not (self.name.isprintable() and self.name.strip() and len(self.name) <= _NAME):
            raise UsageError(f"name: {self.name!r} is not 1 to {_NAME} printable characters")
        if self.replay is not None and self.continues is not None:
            hint = "use --replay for the old code from the beginning, --continue for the current code"
            raise UsageError("--replay and --continue cannot be combined", hint=hint)
        if bad := [name for name in self.env if not name or "=" in name]:
            raise UsageError(f"env: {bad[0]!r} is not the name of a variable", hint="remove the =")
        for option, low, value in (
            ("max_restarts", 0, self.max_restarts),
            ("min_hosts", 1, self.min_hosts),
            ("spares", 1, self.spares),
        ):
            if value is not None and not low <= value <= MOST:
                raise UsageError(f"{option}: {value} is not from {low} to {MOST}")
        for option, seconds in (("hang_timeout", self.hang_timeout), ("keep_warm", self.keep_warm)):
            if seconds is not None and not 0 <= seconds <= LONGEST:
                raise UsageError(f"{option}: {seconds} is not from 0 to {LONGEST:.0f} seconds")

    @property
    def job(self) -> Job:
        """Return [job] with the options of this launch applied."""
        given = {
            "max_restarts": self.max_restarts,
            "min_hosts": self.min_hosts,
            "hang_timeout": self.hang_timeout,
            "keep_warm": self.keep_warm,
            "validation": self.validate,
            "code": self.code,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return msgspec.structs.replace(self.inventory.job, **changes)


class PreflightRequest(Value):
    """A check of every host, and of every pair of hosts or, above 128 hosts, a sample of them."""

    inventory: Inventory
    all_pairs: bool = False  # whatever the number of hosts


class ExecRequest(Value):
    """One command on all hosts, without a run."""

    inventory: Inventory
    command: tuple[str, ...]
    outside: bool = False  # on the machines, not in the containers of hosts that have `container`

    def __post_init__(self) -> None:
        if not self.command:
            raise UsageError("exec needs a command", hint="`orchestrate exec -- uptime`")
        check_texts(self.command)


class PullRequest(Value):
    """Files that a run's tasks wrote."""

    paths: tuple[str, ...] = ()  # none: everything they wrote
    source: str | None = None  # a task or host; None: the chief, or worker/0
    all_hosts: bool = False  # into one folder per host
    to: str | None = None  # None: ./RUN

    def __post_init__(self) -> None:
        check_texts([*self.paths, *filter(None, (self.source, self.to))])
        if self.all_hosts and self.source is not None:
            raise UsageError("all hosts and one host cannot be combined", hint="omit one")


class PushRequest(Value):
    """Data to copy from this machine to every host."""

    inventory: Inventory
    paths: tuple[str, ...] = ()  # none: everything in [data]
    limit: float | None = None  # bytes per second; None: no limit


class SetupRequest(Value):
    """The environment of [env] on every host."""

    inventory: Inventory
    upgrade: bool = False  # resolve the packages again


class TensorboardRequest(Value):
    """A local TensorBoard that follows a run."""

    source: str | None = None  # a task or host; None: all
    logdir: str | None = None  # None: anywhere in the tasks' folder
    port: int = 0  # local; 0: a free port


class CleanRequest(Value):
    """Removing what ended runs left on the hosts."""

    inventory: Inventory
    older_than: float = 30 * 86_400.0  # seconds
    work: bool = False  # also remove working folders
    dry_run: bool = False


class ExportRequest(Value):
    """A launch as files for an engine that starts tasks itself."""

    launch: LaunchRequest
    selection: Selection
    engine: str
    plain: bool = False  # slurm: without orchestrate


def make(kind: type[_T], given: Mapping[str, object], **more: object) -> _T:
    """Return a request with these field values, None for a default; raise TypeError for a wrong type."""
    values = {name: value for name, value in {**given, **more}.items() if value is not None}
    try:
        with READING:
            fields = {name: values[name] for name in kind.__struct_fields__ if name in values}
            return msgspec.convert(fields, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        raise TypeError(f"{kind.__name__}: {error}") from error


def check_texts(texts: Iterable[str]) -> None:
    """Raise UsageError for a text that cannot be a program's argument."""
    joined = "".join(texts)
    try:
        joined.encode()
    except UnicodeEncodeError as error:  # plans, events and nodes hold text only
        hint = "write it as UTF-8, or have the program read it from a file"
        raise UsageError("an argument is not UTF-8", why="tasks receive text", hint=hint) from error
    if "\0" in joined:
        hint = "remove it, or have the program read it from a file"
        raise UsageError("an argument contains a NUL character", why="no program can receive one", hint=hint)
