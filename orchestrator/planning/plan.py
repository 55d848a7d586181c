"""From inventory to plan: which task runs where, with which command, port and environment."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from orchestrator import orchestrate_rank, ranges
from orchestrator.errors import UsageError
from orchestrator.frameworks import FRAMEWORKS
from orchestrator.model import (
    OUTSIDE,
    Admission,
    AutoShard,
    Completion,
    Conduct,
    EnvironmentPlan,
    FrameworkName,
    Host,
    Recipe,
    Restarts,
    Resumed,
    Revalidate,
    Role,
    RunPlan,
    TaskId,
    TaskSpec,
    in_environment,
)
from orchestrator.orchestrate_rank import is_standalone, shares_search
from orchestrator.planning import environ as env_rules
from orchestrator.planning.commands import command_of, is_builtin, is_r, resolve
from orchestrator.planning.selection import stand_by
from orchestrator.program import ahead
from orchestrator.program.choices import KerasChoice, choose_framework, choose_keras, reads_config
from orchestrator.program.findings import Finding, Program, Scene, find, remarks
from orchestrator.ranges import grouped
from orchestrator.requests import LaunchRequest
from orchestrator.text import count, endpoint
from orchestrator.value import Value

_NODE_RANK = re.compile(r"--(?:node[_-]rank|machine_rank)\b")  # of torchrun and accelerate
_STANDALONE = (
    "torchrun --standalone or --rdzv_endpoint=localhost: each host trains separately; without these options,"
    " and --rdzv_backend, they train together"
)
_SEARCH = "Keras Tuner: the first task hands out the trials, the others run them"
_INSTALLED = (
    "{} runs {} as installed on each host, not the code that is sent: a script, or `python -m`, runs the code"
)
_TENSORFLOW = re.compile(r"(?i)\b(?:tensorflow|tf_?keras|keras)")
SERVICE = "ORCHESTRATE_SERVICE"
CHECKPOINTS = ("--checkpoint-dir", "checkpoints")  # in the run's own folder


class _Seat(Value):
    """One task's host, its port and its share of the devices there."""

    task: TaskId
    host: Host
    port: int
    devices: tuple[str, ...] | None

    @property
    def address(self) -> str:
        return endpoint(self.host.address, self.port)


class LaunchFacts(Value, kw_only=True):
    """This machine's contribution to a launch; the plan is made from it and the request."""

    run: str  # id
    owner: str
    created: float
    programs: tuple[Program, ...] = ()  # of `commands`
    environment: EnvironmentPlan | None = None  # for hosts that name no Python of their own
    cwd: str = ""  # where in the code the tasks run
    resumed: Resumed | None = None  # the run that it continues
    notes: tuple[str, ...] = ()


def make(request: LaunchRequest, facts: LaunchFacts) -> tuple[RunPlan, tuple[Finding, ...]]:
    """Plan a launch: tasks on every host except spares, in inventory order, and likely problems.

    The request has its final command (`choose_command`). Raise UsageError for what cannot be planned.
    """
    job, inventory, command = request.job, request.inventory, request.command
    if request.spares:
        inventory = stand_by(inventory, request.spares)
    env_rules.check(request.env, job.secrets)
    builtin = is_builtin(command)
    named = any(word.partition("=")[0] == CHECKPOINTS[0] for word in command)
    if (job.max_restarts or facts.resumed) and builtin and not named:
        command = (*command, *CHECKPOINTS)  # without a folder a restart begins at the first step
    everywhere = inventory.hosts
    if facts.environment is not None:
        everywhere = tuple(in_environment(host, facts.environment) for host in everywhere)
    hosts = tuple(host for host in everywhere if not host.spare)
    if not hosts:
        raise UsageError(f"{inventory.source} has no host to run on", why="every host is a spare")
    if job.min_hosts is not None and not job.max_restarts:
        raise UsageError(
            "--min-hosts needs --max-restarts",
            why="a run continues with fewer hosts only when its tasks are restarted",
            hint="pass `--max-restarts 3`, or set max_restarts = 3 under [job]",
        )
    if (request.min_hosts or 0) > len(hosts):
        raise UsageError(
            f"--min-hosts {request.min_hosts} is more than the {count(len(hosts), 'host')} of the run",
            hint=f"`--min-hosts {len(hosts)}` at most",
        )
    recipe, took, remark = _recipe(request, hosts, command, facts.programs)
    cluster, tasks, notes = place_tasks(hosts, command, recipe)
    tensorflow = FRAMEWORKS[recipe.framework].has_config
    # Notes on TensorFlow's variables are left out if the program can be read and does not use it.
    shows_notes = builtin or is_r(tasks[0].argv) or not tensorflow
    texts = (source.text for program in facts.programs for source in program.sources)
    shows_notes |= any(map(_TENSORFLOW.search, (*command, *texts)))
    scenes = tuple(_scenes(hosts, command, tasks, recipe, facts.programs))
    findings = tuple(dict.fromkeys(finding for scene in scenes for finding in find(scene)))
    if_shared = [finding for scene in scenes for finding in find(replace(scene, one_folder=True))]
    terminal = request.terminal  # a task at a breakpoint is silent: no hang detection, no restarts
    # With ps only the chief of worker_entry writes the checkpoints.
    ours = command[-len(CHECKPOINTS) :] == CHECKPOINTS and Role.PS.value in cluster
    backup = job.backup or (CHECKPOINTS[1] if ours else None)
    most, least = (0, None) if terminal else (job.max_restarts, job.min_hosts)
    # It is not known what a user's own command checks: it may be the network.
    when = job.validation or (Revalidate.ALWAYS if job.validate else Revalidate.CHANGED)
    validation = FRAMEWORKS[recipe.framework].validation
    sources = (program.sources for program in facts.programs if program.command == command)
    own = grouped((command_of(host, command), host.name) for host in hosts if host.command or host.args)
    conduct = {name: getattr(job, name) for name in Conduct.__struct_fields__}
    conduct |= {"hang_timeout": 0.0} if terminal else {}
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
        admission=Admission(
            preflight=request.preflight,
            validate=when is not Revalidate.NEVER and bool(job.validate or validation),
            recall=when is Revalidate.CHANGED,
            validate_command=job.validate,
            other_ports=request.other_ports,
            wait=request.wait,
        ),
        notes=(
            *took,
            *(f"{ranges.fold(names)}: {shlex.join(argv)}" for argv, names in own.items()),
            *(notes if shows_notes else ()),
            *remark,
            *map(str, findings),
            *facts.notes,
        ),
        if_shared=tuple(str(finding) for finding in dict.fromkeys(if_shared) if finding not in findings),
        own_paths=dict(pair for program in facts.programs for pair in program.own_paths.items()),
        terminal=terminal,
        **conduct,
        spares=tuple(host for host in everywhere if host.spare),
        cwd=facts.cwd,
        environment=facts.environment,
        resumed=facts.resumed,
        data=inventory.data,
        # Hosts' own commands are not imported early.
        ahead=ahead.BUNDLED if builtin else ahead.find(command, next(sources, ())),
    )
    return made, findings


def _scenes(
    hosts: tuple[Host, ...],
    command: tuple[str, ...],
    tasks: tuple[TaskSpec, ...],
    recipe: Recipe,
    programs: tuple[Program, ...],
) -> Iterator[Scene]:
    """Yield each program with its fellow tasks: all tasks if it trains, otherwise only those that run it."""
    for program in programs:
        on = {host.name for host in hosts if command_of(host, command) == program.command}
        alike = tuple(task for task in tasks if task.host in on)
        trains = any(task.id.role in (Role.CHIEF, Role.WORKER) for task in alike) or not alike
        yield Scene(tasks if trains else alike, recipe, program)


def _recipe(
    request: LaunchRequest, hosts: tuple[Host, ...], command: tuple[str, ...], programs: tuple[Program, ...]
) -> tuple[Recipe, tuple[str, ...], tuple[str, ...]]:
    """Return the tasks' recipe, the evidence for its framework, and a note on its Keras."""
    job, env = request.job, request.env
    framework, took, builtin = job.framework, tuple[str, ...](), is_builtin(command)
    if builtin:
        framework = FrameworkName.TENSORFLOW
    elif framework is FrameworkName.AUTO:
        helpers = {command_of(host, command) for host in hosts if host.role in OUTSIDE}
        helpers -= {command_of(host, command) for host in hosts if host.role not in OUTSIDE}
        trainers = [program for program in programs if program.command not in helpers]
        of = [source for program in trainers for source in program.sources]
        shell = "\n".join(program.shell for program in trainers)
        framework, why = choose_framework(command, of, {**job.env, **env}, shell)
        unknown = framework is FrameworkName.AUTO
        why += ", and local validation is skipped" if unknown and not job.validate else ""
        does = "sets" if unknown else "changes"
        took = (f"{FRAMEWORKS[framework].title}: {why}; `framework` under [job] {does} it",)
    _check_framework(framework, hosts, command)
    tensorflow = FRAMEWORKS[framework].has_config
    read = [source for program in programs for source in program.sources if not builtin]
    ps = any(host.role is Role.PS for host in hosts)
    which = choose_keras(job.legacy_keras, read, ps=ps) if tensorflow else KerasChoice()
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
        tuner=any(shares_search(source.text) for source in read)
        and sum(host.tasks for host in hosts if host.role not in OUTSIDE) > 1,
        standalone=any(
            is_standalone(f"{' '.join(program.command)}\n{program.shell}") for program in programs
        ),
    )
    notes = () if which.keras_3 is None else (which.keras_3,)
    separate = recipe.standalone and len(hosts) > 1
    scripts = remarks(programs, several=len(hosts) > 1)
    installed = [_INSTALLED.format(each.command[0], each.installed) for each in programs if each.installed]
    installed *= not job.setup  # which may install the code that is sent
    return recipe, took, (*notes, *installed, *scripts, *[_SEARCH] * recipe.tuner, *[_STANDALONE] * separate)


def _check_framework(framework: FrameworkName, hosts: Sequence[Host], command: Sequence[str]) -> None:
    """Raise UsageError for hosts that a framework cannot use."""
    title = FRAMEWORKS[framework].title
    trainers = [host for host in hosts if host.role not in OUTSIDE]
    line = " ".join(command).partition(".py ")[0]
    starts = FRAMEWORKS[framework].starts.search(line)
    same = next(filter(_NODE_RANK.match, command), "") if starts and len(trainers) > 1 else ""
    if same:
        raise UsageError(
            f"{same} would be the same on all {len(trainers)} hosts, and they would wait for each other",
            why="each host gets its own by PET_NODE_RANK, and the number of nodes and the master likewise",
            hint="remove --nnodes, --node_rank, --master_addr and --master_port from the command",
        )
    nodes = re.search(r"--nnodes[= ](\d+)(?![\d:])", line) if starts and not is_standalone(line) else None
    if nodes and len(trainers) > 1 and int(nodes[1]) != len(trainers):
        raise UsageError(
            f"{nodes[0]} does not fit {len(trainers)} hosts: some would wait for others, or until those end",
            why="each host gets the number by PET_NNODES, which the option overrides",
            hint="remove --nnodes from the command",
        )
    for host in trainers if not FRAMEWORKS[framework].has_config else ():
        if host.role is not Role.WORKER:
            raise UsageError(
                f"{host.name} has the role {host.role.value}, and the program's framework is {title}",
                why="only TensorFlow has this role; tasks that train are equal and have a rank",
                hint='remove `role`; or write framework = "tensorflow" under [job], if it is TensorFlow',
            )
        if host.tasks > 1 and starts:
            raise UsageError(
                f"{host.name} has {host.tasks} tasks, and the command starts the processes of a host itself",
                hint="remove `tasks`: one task per host; or launch the script without that command",
            )


def place_tasks(
    hosts: tuple[Host, ...], command: tuple[str, ...], recipe: Recipe
) -> tuple[dict[str, tuple[str, ...]], tuple[TaskSpec, ...], tuple[str, ...]]:
    """Return the cluster, its tasks, and the variables set by default, for hosts in this order."""
    seats = tuple(_seats(hosts))
    roles = {role.value: [placed.address for placed in seats if placed.task.role is role] for role in Role}
    # Evaluators and services watch or serve from outside, and are never part of it.
    cluster = {role: tuple(peers) for role, peers in roles.items() if peers and role not in OUTSIDE}
    in_config, in_json = {*Role} - {Role.SERVICE}, json.dumps(cluster)
    tasks: list[TaskSpec] = []
    stood: list[tuple[env_rules.Default, TaskId]] = []
    has_config = FRAMEWORKS[recipe.framework].has_config and (len(seats) > 1 or recipe.tf_config)
    services = {SERVICE: ",".join(roles[Role.SERVICE])} if roles[Role.SERVICE] else {}
    places = dict(_places(seats))
    for placed in seats:
        argv = resolve(command_of(placed.host, command), placed.host.python)
        full, defaults = env_rules.layer(
            env_rules.defaults(
                devices=placed.host.devices if FRAMEWORKS[recipe.framework].shows_all else placed.devices,
                recipe=recipe,
                place=places[placed.task],
                r_python=placed.host.python if is_r(argv) and "/" in placed.host.python else None,
            ),
            recipe.job_env,
            placed.host.env,
            recipe.env,
            services,
            tf_config=tf_config(in_json, placed.task)
            if has_config and placed.task.role in in_config
            else None,
        )
        stood += [(default, placed.task) for default in defaults]
        tasks.append(TaskSpec(placed.task, placed.host.name, placed.port, argv, full, recipe.setup))
    return cluster, tuple(tasks), tuple(_notes(stood, len(tasks)))


def tf_config(cluster: str, task: TaskId) -> str:
    """Return one line of JSON for a task of a cluster, which is JSON already."""
    return f'{{"cluster": {cluster}, "task": {{"type": "{task.role.value}", "index": {task.index}}}}}'


def completion(cluster: Mapping[str, tuple[str, ...]]) -> Completion:
    """Return when a run is complete: parameter servers and their workers never exit by themselves."""
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


def _places(seats: Sequence[_Seat]) -> Iterator[tuple[TaskId, dict[str, str]]]:
    """Yield each task's position: workers, chief and ps together; evaluators and services by role."""
    groups = grouped((seat.task.role if seat.task.role in OUTSIDE else Role.WORKER, seat) for seat in seats)
    for among in groups.values():
        peers = tuple((seat.host.address, seat.port) for seat in among)
        hosts = list(dict.fromkeys(seat.host.name for seat in among))
        for rank, seat in enumerate(among):
            host, local_rank = seat.host, seat.port - seat.host.task_port
            node = hosts.index(host.name), len(hosts)
            place = orchestrate_rank.values(peers, rank, (local_rank, host.tasks), node, seat.task.role.value)
            if host.devices is not None:
                place["processes"] = str(len(host.devices) or 1)
            yield seat.task, place


def _notes(stood: list[tuple[env_rules.Default, TaskId]], total: int) -> Iterator[str]:
    """Return each default's note once, with its tasks if it does not apply to all."""
    notes = (((default.name, default.note), (default.value, str(task))) for default, task in stood)
    for (name, note), values in grouped(notes).items():
        if not note:
            continue
        distinct = {value for value, _ in values}
        value = f"={distinct.pop()}" if len(distinct) == 1 else ""
        where = "" if len(values) == total else f" on {ranges.fold(task for _, task in values)}"
        yield f"{name}{value} is set{where} {note}"
