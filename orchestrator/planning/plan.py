"""From inventory to plan: which task runs where, with what command, port and environment."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from msgspec import Struct
from msgspec.structs import replace

from orchestrator import ranges
from orchestrator.errors import UsageError
from orchestrator.frameworks import FRAMEWORKS, Standing
from orchestrator.model import (
    Admission,
    AutoShard,
    Completion,
    Conduct,
    EnvironmentPlan,
    FrameworkName,
    Host,
    Job,
    Recipe,
    Restarts,
    Revalidate,
    Role,
    RunPlan,
    TaskId,
    TaskSpec,
)
from orchestrator.orchestrate_rank import shares_search
from orchestrator.planning import environ as env_rules
from orchestrator.planning.selection import stand_by
from orchestrator.program.choices import KerasChoice, choose_framework, choose_keras, reads_config
from orchestrator.program.findings import Finding, Scene, find
from orchestrator.program.sources import SourceFile
from orchestrator.ranges import grouped
from orchestrator.requests import LaunchRequest
from orchestrator.text import count, endpoint

_NODE_RANK = re.compile(r"--(?:node[_-]rank|machine_rank)\b")  # of torchrun and accelerate
_SEARCH = "Keras Tuner: the first task hands out the trials, the others run them"
WORKER_ENTRY = ("-m", "worker_entry")
_TENSORFLOW = re.compile(r"(?i)\b(?:tensorflow|tf_?keras|keras)")
CHECKPOINTS = ("--checkpoint-dir", "checkpoints")  # in the run's own folder


class _Seat(Struct, frozen=True):
    """One task's host, its port and its share of the devices there."""

    task: TaskId
    host: Host
    port: int
    devices: tuple[str, ...] | None

    @property
    def address(self) -> str:
        return endpoint(self.host.address, self.port)


class LaunchFacts(Struct, frozen=True, kw_only=True):
    """Findings of this machine for one launch; a plan is made of them and of the request."""

    run: str  # id
    owner: str
    created: float
    sources: tuple[SourceFile, ...] = ()  # the program and the modules beside it, where they are Python
    own_paths: Mapping[str, str] = {}  # paths in them that only this machine has
    environment: EnvironmentPlan | None = None  # whose Pythons the hosts have
    cwd: str = ""  # where in the code the tasks run
    notes: tuple[str, ...] = ()


def make(request: LaunchRequest, facts: LaunchFacts) -> tuple[RunPlan, tuple[Finding, ...]]:
    """Plan a launch: tasks on every host that is no spare, in inventory order, and what may go wrong.

    Raise UsageError for what cannot be planned.
    """
    job, inventory = request.job, request.inventory
    if request.spares:
        inventory = stand_by(inventory, request.spares)
    env_rules.check(request.env, job.secrets)
    command = choose_command(job, request.command)
    builtin = is_builtin(command)
    named = any(word.partition("=")[0] == CHECKPOINTS[0] for word in command)
    if job.max_restarts and builtin and not named:
        command = (*command, *CHECKPOINTS)  # without a folder a restart begins at the first step
    hosts = tuple(host for host in inventory.hosts if not host.spare)
    if not hosts:
        raise UsageError(f"{inventory.source} has no host to run on", why="every host is a spare")
    if job.min_hosts is not None and not job.max_restarts:
        raise UsageError(
            "--min-hosts needs --max-restarts",
            why="a run continues with fewer hosts only when its tasks are restarted",
            hint="give `--max-restarts 3`, or set max_restarts = 3 under [job]",
        )
    if (request.min_hosts or 0) > len(hosts):
        raise UsageError(
            f"--min-hosts {request.min_hosts} is more than the {count(len(hosts), 'host')} of the run",
            hint=f"`--min-hosts {len(hosts)}` at most",
        )
    texts = tuple(source.text for source in facts.sources)
    recipe, took, remark = _recipe(job, request.env, hosts, command, texts)
    cluster, tasks, notes = seat(hosts, command, recipe)
    tensorflow = FRAMEWORKS[recipe.framework].has_config
    # What is set for TensorFlow is no news to a program that does not name it, as far as it can be read.
    known = builtin or is_r(tasks[0].argv) or not tensorflow
    known |= any(map(_TENSORFLOW.search, (*command, *texts)))
    scene = Scene(tasks, recipe, facts.sources)
    found = find(scene) if tensorflow else ()
    if_shared = find(replace(scene, one_folder=True)) if tensorflow else ()
    terminal = request.terminal
    once = terminal is not None  # whoever looks at a breakpoint thinks: nothing hangs, nothing is restarted
    # With ps only the chief of worker_entry writes the checkpoints.
    ours = command[-len(CHECKPOINTS) :] == CHECKPOINTS and Role.PS.value in cluster
    backup = job.backup or (CHECKPOINTS[1] if ours else None)
    most, least = (0, None) if once else (job.max_restarts, job.min_hosts)
    conduct = {name: getattr(job, name) for name in Conduct.__struct_fields__}
    made = RunPlan(
        run=facts.run,
        name=request.name,
        owner=facts.owner,
        created=facts.created,
        hosts=hosts,
        cluster=cluster,
        tasks=tasks,
        command=command,
        completion=completion(cluster),
        recipe=recipe,
        restarts=Restarts(most, least, job.host_timeout, backup),
        admission=_admission(request, recipe.framework),
        notes=(*took, *((*notes, *remark) if known else ()), *map(str, found), *facts.notes),
        if_shared=tuple(str(one) for one in if_shared if one not in found),
        own_paths=dict(facts.own_paths),
        terminal=terminal,
        **{**conduct, **({"hang_timeout": 0.0} if once else {})},
        spares=tuple(host for host in inventory.hosts if host.spare),
        cwd=facts.cwd,
        environment=facts.environment,
        data=inventory.data,
    )
    return made, found


def _admission(request: LaunchRequest, framework: FrameworkName) -> Admission:
    job = request.job
    # What a command of the user's own looks at is not known: it may be the network.
    when = job.validation or (Revalidate.ALWAYS if job.validate else Revalidate.CHANGED)
    return Admission(
        preflight=request.preflight,
        validate=when is not Revalidate.NEVER and bool(job.validate or FRAMEWORKS[framework].validation),
        recall=when is Revalidate.CHANGED,
        validate_command=job.validate,
        other_ports=request.other_ports,
        wait=request.wait,
    )


def _recipe(
    job: Job,
    env: Mapping[str, str],
    hosts: tuple[Host, ...],
    command: tuple[str, ...],
    texts: tuple[str, ...],
) -> tuple[Recipe, tuple[str, ...], tuple[str, ...]]:
    """Return the material of the tasks, why it is of its framework, and a remark on its Keras."""
    framework, took, builtin = job.framework, tuple[str, ...](), is_builtin(command)
    if builtin:
        framework = FrameworkName.TENSORFLOW
    elif framework is FrameworkName.AUTO:
        framework, why = choose_framework(command, texts, {**job.env, **env})
        does = "names" if framework is FrameworkName.AUTO else "changes"
        took = (f"{FRAMEWORKS[framework].title}: {why}; `framework` under [job] {does} it",)
    _check_framework(framework, hosts, command)
    tensorflow = FRAMEWORKS[framework].has_config
    read = None if builtin else texts
    which = KerasChoice()
    if tensorflow:
        ps = any(host.role is Role.PS for host in hosts)
        which = choose_keras(job.legacy_keras, read, ps=ps)
    recipe = Recipe(
        job_env=job.env,
        env=env,
        framework=framework,
        legacy_keras=which.legacy,
        keras_of=which.modules,
        repair_keras=job.repair_keras and which != KerasChoice(),
        auto_shard=job.auto_shard if tensorflow else AutoShard.OFF,
        tf_config=reads_config(read) if job.tf_config is None else job.tf_config,
        setup=job.setup,
        tuner=any(map(shares_search, read or ())) and sum(host.tasks for host in hosts) > 1,
    )
    notes = () if which.keras_3 is None else (which.keras_3,)
    return recipe, took, (*notes, *[_SEARCH] * recipe.tuner)


def _check_framework(framework: FrameworkName, hosts: Sequence[Host], command: Sequence[str]) -> None:
    """Raise UsageError for hosts that a framework has no use for."""
    title = FRAMEWORKS[framework].title
    starts = FRAMEWORKS[framework].starts.search(" ".join(command))
    same = next((word for word in command if _NODE_RANK.match(word)), "") if starts and len(hosts) > 1 else ""
    if same:
        raise UsageError(
            f"{same} would be the same on all {len(hosts)} hosts, and they would wait for each other",
            why="each host gets its own by PET_NODE_RANK, and the number of nodes and the master likewise",
            hint="remove --nnodes, --node_rank, --master_addr and --master_port from the command",
        )
    for host in hosts if not FRAMEWORKS[framework].has_config else ():
        if host.role is not Role.WORKER:
            raise UsageError(
                f"{host.name} has the role {host.role.value}, and the program's framework is {title}",
                why="only TensorFlow's tasks have roles; all others are equal and have a rank",
                hint='remove `role`; or write framework = "tensorflow" under [job], if it is TensorFlow',
            )
        if host.tasks > 1 and starts:
            raise UsageError(
                f"{host.name} has {host.tasks} tasks, and the command starts the processes of a host itself",
                hint="remove `tasks`: one task per host; or launch the script without that command",
            )


def seat(
    hosts: tuple[Host, ...], command: tuple[str, ...], recipe: Recipe
) -> tuple[dict[str, tuple[str, ...]], tuple[TaskSpec, ...], tuple[str, ...]]:
    """The cluster, its tasks, and what was set by itself, for hosts in this order."""
    seats = tuple(_seats(hosts))
    roles = {role.value: [one.address for one in seats if one.task.role is role] for role in Role}
    # The evaluator watches from outside, and is never in it.
    cluster = {role: tuple(peers) for role, peers in roles.items() if peers and role != Role.EVALUATOR}
    tasks: list[TaskSpec] = []
    stood: list[tuple[env_rules.Default, TaskId]] = []
    has_config = FRAMEWORKS[recipe.framework].has_config and (len(seats) > 1 or recipe.tf_config)
    for one, place in zip(seats, _places(seats), strict=True):
        argv = resolve(command, one.host.python)
        full, defaults = env_rules.layer(
            env_rules.defaults(
                role=one.task.role,
                devices=one.host.devices if FRAMEWORKS[recipe.framework].shows_all else one.devices,
                recipe=recipe,
                place=place,
                r_python=one.host.python if is_r(argv) and "/" in one.host.python else None,
            ),
            recipe.job_env,
            one.host.env,
            recipe.env,
            tf_config=tf_config(cluster, one.task) if has_config else None,
        )
        stood += [(default, one.task) for default in defaults]
        tasks.append(TaskSpec(one.task, one.host.name, one.port, argv, full, recipe.setup))
    return cluster, tuple(tasks), tuple(_notes(stood, len(tasks)))


def choose_command(job: Job, command: tuple[str, ...]) -> tuple[str, ...]:
    """The command line's command, else [job]'s; arguments alone (`-- --epochs 3`) are added to [job]'s."""
    if command and not command[0].startswith("-"):
        return command
    return (*job.command, *command)


def is_builtin(command: Sequence[str]) -> bool:
    """Return True if worker_entry runs: no command, or only options."""
    return not command or command[0].startswith("-")


def resolve(command: tuple[str, ...], python: str) -> tuple[str, ...]:
    """The argv a host runs: x.py under its `python`, x.R under Rscript, nothing at all as worker_entry."""
    if is_builtin(command):
        return (python, *WORKER_ENTRY, *command)
    match PurePath(command[0]).suffix:
        case ".py":
            return (python, *command)
        case ".R" | ".r":
            return ("Rscript", *command)
    return command


def is_r(argv: tuple[str, ...]) -> bool:
    """Return True if a resolved command is R's."""
    return PurePath(argv[0]).name == "Rscript"


def tf_config(cluster: Mapping[str, tuple[str, ...]], task: TaskId) -> str:
    """One line of JSON, cluster before task."""
    return json.dumps({"cluster": cluster, "task": {"type": task.role.value, "index": task.index}})


def completion(cluster: Mapping[str, tuple[str, ...]]) -> Completion:
    """Parameter servers, and the workers beside them, never exit by themselves."""
    return Completion.CHIEF if Role.PS.value in cluster else Completion.ALL


def _seats(hosts: tuple[Host, ...]) -> Iterator[_Seat]:
    counts: Counter[Role] = Counter()
    for host in hosts:
        for place in range(host.tasks):
            task = TaskId(host.role, counts[host.role])
            counts[host.role] += 1
            each = len(host.devices or ()) // host.tasks
            share = None if host.devices is None else host.devices[place * each : (place + 1) * each]
            yield _Seat(task, host, host.task_port + place, share)


def _places(seats: Sequence[_Seat]) -> Iterator[Standing]:
    peers = tuple((seat.host.address, seat.port) for seat in seats)
    hosts = list(dict.fromkeys(seat.host.name for seat in seats))
    for rank, seat in enumerate(seats):
        host = seat.host
        local_rank, host_rank = seat.port - host.task_port, hosts.index(host.name)
        yield Standing(rank, peers, local_rank, host.tasks, host_rank, len(hosts), host.devices)


def _notes(stood: list[tuple[env_rules.Default, TaskId]], total: int) -> Iterator[str]:
    """Each default once, and for which tasks where it is not all of them."""
    told = (((default.name, default.note), (default.value, str(task))) for default, task in stood)
    for (name, note), found in grouped(told).items():
        if not note:
            continue
        distinct = {value for value, _ in found}
        value = f"={distinct.pop()}" if len(distinct) == 1 else ""
        where = "" if len(found) == total else f" on {ranges.fold(task for _, task in found)}"
        yield f"set {name}{value}{where} {note}"
