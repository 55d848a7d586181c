"""From inventory to plan: which task runs where, with what command, port and environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from orchestrator import environ as env_rules
from orchestrator import ranges, tfconfig
from orchestrator.errors import UsageError
from orchestrator.model import (
    Completion,
    Host,
    Inventory,
    Job,
    Recipe,
    Restarts,
    Role,
    RunPlan,
    TaskId,
    TaskSpec,
)

WORKER_ENTRY = ("-m", "worker_entry")
CHECKPOINTS = ("--checkpoint-dir", "checkpoints")  # in the run's own folder


@dataclass(frozen=True)
class _Seat:
    """One task's place: its host, its port and its share of the devices there."""

    task: TaskId
    host: Host
    port: int
    devices: tuple[str, ...] | None

    @property
    def address(self) -> str:
        address = f"[{self.host.address}]" if ":" in self.host.address else self.host.address
        return f"{address}:{self.port}"


def assign(
    inventory: Inventory,
    *,
    command: tuple[str, ...],
    env: Mapping[str, str],
    name: str,
    run: str,
    owner: str,
    created: float,
    environ: Mapping[str, str],
    script: str | None = None,
) -> RunPlan:
    """Plan a run on every host that is no spare, in inventory order.

    `command` and `env` are those of the command line, `environ` is the controller's environment and
    `script` the text of `script_path(...)`, if it could be read. Raise UsageError.
    """
    job = inventory.job
    env_rules.check(env, job.secrets)
    chosen = _saving(choose_command(job, command), job.max_restarts)
    legacy_keras, keras_note = env_rules.legacy_keras(job.legacy_keras, script)
    hosts = tuple(host for host in inventory.hosts if not host.spare)
    if not hosts:
        raise UsageError(f"{inventory.source} has no host to run on", why="every host is a spare")
    _check_restarts(job, len(hosts))
    cluster, tasks, notes = seat(
        hosts,
        chosen,
        recipe := Recipe(env_rules.forwarded(job.forward, environ), job.env, env, legacy_keras, job.setup),
    )
    return RunPlan(
        run=run,
        name=name,
        owner=owner,
        created=created,
        hosts=hosts,
        cluster=cluster,
        tasks=tasks,
        command=chosen,
        completion=completion(cluster),
        grace=job.grace,
        failure_grace=job.failure_grace,
        lifeline=job.lifeline,
        secrets=job.secrets,
        recipe=recipe,
        restarts=Restarts(job.max_restarts, job.min_hosts, job.host_timeout, _backup(job, chosen, cluster)),
        notes=(*notes, *filter(None, (keras_note,))),
        spares=tuple(host for host in inventory.hosts if host.spare),
        hang_timeout=job.hang_timeout,
        on_hang=job.on_hang,
        stacks=job.stacks,
    )


def _check_restarts(job: Job, hosts: int) -> None:
    """Raise UsageError for what would never be used, or never be met."""
    if job.min_hosts is None:
        return
    if not job.max_restarts:
        raise UsageError(
            "--min-hosts needs --max-restarts",
            why="a run goes on with fewer hosts only when its tasks are started again",
            hint="--max-restarts 3, or max_restarts = 3 under [job]",
        )
    if job.min_hosts > hosts:
        raise UsageError(
            f"--min-hosts {job.min_hosts} is more than the {hosts} that have tasks",
            hint="spares do not count",
        )


def seat(
    hosts: tuple[Host, ...], command: tuple[str, ...], recipe: Recipe
) -> tuple[dict[str, tuple[str, ...]], tuple[TaskSpec, ...], tuple[str, ...]]:
    """The cluster, its tasks, and what was set by itself, for hosts in this order."""
    seats = tuple(_seats(hosts))
    cluster = cluster_of(seats)
    tasks: list[TaskSpec] = []
    stood: list[tuple[env_rules.Default, TaskId]] = []
    for one in seats:
        argv = resolve(command, one.host.python)
        full, defaults = env_rules.layer(
            env_rules.defaults(
                role=one.task.role,
                devices=one.devices,
                legacy_keras=recipe.legacy_keras,
                r_python=one.host.python if is_r(argv) and "/" in one.host.python else None,
            ),
            recipe.forwarded,
            recipe.job_env,
            one.host.env,
            recipe.env,
            tf_config=tfconfig.render(cluster, one.task),
        )
        stood += [(default, one.task) for default in defaults]
        tasks.append(TaskSpec(one.task, one.host.name, one.port, argv, full, recipe.setup))
    return cluster, tuple(tasks), tuple(_notes(stood, len(tasks)))


def choose_command(job: Job, command: tuple[str, ...]) -> tuple[str, ...]:
    """The command line's command, else [job]'s; arguments alone (`-- --epochs 3`) are added to [job]'s."""
    if command and not command[0].startswith("-"):
        return command
    return (*job.command, *command)


def _saving(command: tuple[str, ...], restarts: int) -> tuple[str, ...]:
    """worker_entry needs a folder for its checkpoints, or a restart begins at the first step."""
    builtin = not command or command[0].startswith("-")
    named = any(word.partition("=")[0] == CHECKPOINTS[0] for word in command)
    return (*command, *CHECKPOINTS) if restarts and builtin and not named else command


def _backup(job: Job, command: tuple[str, ...], cluster: Mapping[str, tuple[str, ...]]) -> str | None:
    """What only the first task writes: of worker_entry every task saves, but with ps only the chief."""
    ours = command[-len(CHECKPOINTS) :] == CHECKPOINTS and Role.PS.value in cluster
    return job.backup or (CHECKPOINTS[1] if ours else None)


def resolve(command: tuple[str, ...], python: str) -> tuple[str, ...]:
    """The argv a host runs: x.py under its `python`, x.R under Rscript, nothing at all as worker_entry."""
    if not command or command[0].startswith("-"):
        return (python, *WORKER_ENTRY, *command)
    match PurePath(command[0]).suffix:
        case ".py":
            return (python, *command)
        case ".R" | ".r":
            return ("Rscript", *command)
    return command


def is_r(argv: tuple[str, ...]) -> bool:
    """Whether a resolved command is R's."""
    return PurePath(argv[0]).name == "Rscript"


def script_path(command: tuple[str, ...]) -> str | None:
    """The Python script in a command (`train.py --x`, `python -u train.py`), for the caller to read."""
    if not command:
        return None
    words = command if command[0].endswith(".py") else ()
    if PurePath(command[0]).name.startswith("python"):
        words = tuple(word for word in command[1:] if not word.startswith("-"))
    return words[0] if words and words[0].endswith(".py") else None


def cluster_of(seats: tuple[_Seat, ...]) -> dict[str, tuple[str, ...]]:
    """Which host:port has which role; the evaluator watches from outside and is never in it."""
    roles = [role for role in Role if role is not Role.EVALUATOR]
    found = {role.value: tuple(seat.address for seat in seats if seat.task.role is role) for role in roles}
    return {role: peers for role, peers in found.items() if peers}


def completion(cluster: Mapping[str, tuple[str, ...]]) -> Completion:
    """Parameter servers, and the workers beside them, never exit by themselves."""
    return Completion.CHIEF if Role.PS.value in cluster else Completion.ALL


def _seats(hosts: tuple[Host, ...]) -> Iterator[_Seat]:
    counts: Counter[Role] = Counter()
    for host in hosts:
        for place in range(host.tasks):
            task = TaskId(host.role, counts[host.role])
            counts[host.role] += 1
            yield _Seat(task, host, host.task_port + place, _share(host, place))


def _share(host: Host, place: int) -> tuple[str, ...] | None:
    if host.devices is None:
        return None
    each = len(host.devices) // host.tasks
    return host.devices[place * each : (place + 1) * each]


def _notes(stood: list[tuple[env_rules.Default, TaskId]], total: int) -> Iterator[str]:
    """Each default once, and for which tasks where it is not all of them."""
    tasks: dict[tuple[str, str], list[str]] = {}
    values: dict[tuple[str, str], list[str]] = {}
    for default, task in stood:
        if not default.note:
            continue
        tasks.setdefault((default.name, default.note), []).append(str(task))
        values.setdefault((default.name, default.note), []).append(default.value)
    for (name, note), who in tasks.items():
        distinct = set(values[name, note])
        value = f"={distinct.pop()}" if len(distinct) == 1 else ""
        where = "" if len(who) == total else f" on {ranges.fold(who)}"
        yield f"set {name}{value}{where} {note}"
