"""Findings: likely problems of a job, derived from its program and its plan. Pure.

A finding is a warning and stops nothing. Uncertain cases are not reported: no program of tests/scripts may
have a false one. To add one, write a rule below: its code, its text and its position are all in here.
"""

import ast
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice

from orchestrator.frameworks import FRAMEWORKS
from orchestrator.model import Recipe, Role, TaskSpec
from orchestrator.orchestrate_rank import is_standalone
from orchestrator.program import invocation, sources
from orchestrator.program.refusals import Code
from orchestrator.program.sources import SourceFile, argument, called, dotted, text
from orchestrator.value import Value

PAGE = "docs/lint.md"
PROGRAM, PATH = "O201", "O203"  # found on the hosts
# docs/lint.md has a section for each
CODES = ("O101", "O104", "O105", "O106", "O107", "O108", "O109", PROGRAM, PATH)


class Program(Value):
    """One of the commands of a launch."""

    command: tuple[str, ...]
    sources: tuple[SourceFile, ...] = ()  # the program and the modules beside it, where they are Python
    hiding: tuple[SourceFile, ...] = ()  # files beside it that Python imports in place of others
    shell: str = ""  # the shell script that runs it, with those that it runs
    script: tuple[SourceFile, ...] = ()  # that script alone
    own_paths: Mapping[str, str] = {}  # paths in it that only this machine has, each with its line
    installed: str | None = None  # the module that it runs from the package installed on each host


class Finding(Value):
    """A likely problem and its fix; it stops nothing."""

    code: str
    what: str
    fix: str
    path: str  # of the program's file
    line: int

    def __str__(self) -> str:
        where = f"{self.path}, line {self.line}"
        return f"{self.code} {where}: {self.what}; {self.fix} ({PAGE}#{self.code.lower()})"

    def as_json(self) -> dict[str, str | int]:
        return {"code": self.code, "path": self.path, "line": self.line, "what": self.what, "fix": self.fix}


class Scene(Value, dict=True):
    """Everything that the rules may inspect."""

    tasks: Sequence[TaskSpec]
    recipe: Recipe
    program: Program
    one_folder: bool = False  # the hosts share a working folder, which only they can report

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        return self.program.sources

    @cached_property
    def workers(self) -> int:
        """Count the tasks that train together."""
        return sum(task.id.role in (Role.CHIEF, Role.WORKER) for task in self.tasks)

    @property
    def spread(self) -> bool:
        """Return True if several workers train by MultiWorkerMirroredStrategy, as far as the text shows."""
        ps = any(task.id.role is Role.PS for task in self.tasks)
        return self.workers > 1 and not ps and self.names("MultiWorkerMirroredStrategy")

    def names(self, pattern: str) -> bool:
        return any(re.search(pattern, source.text) for source in self.sources)

    def calls(self, *names: str) -> Iterator[tuple[SourceFile, ast.Call]]:
        """Yield the calls of these names on any object."""
        for source in self.sources:
            yield from ((source, call) for call in source.calls if called(call) in names)


def find(scene: Scene) -> tuple[Finding, ...]:
    """Return all findings except those that a comment on their line silences."""
    program = scene.program
    files = {source.path: source for source in (*program.sources, *program.hiding, *program.script)}
    tensorflow = FRAMEWORKS[scene.recipe.framework].has_config
    rules = (_config, _batch, _saving, _hiding, _servers) if tensorflow else (_hiding, _lightning, _meeting)
    findings = dict.fromkeys(finding for rule in rules for finding in rule(scene))
    return tuple(each for each in findings if not is_silent(each.code, files[each.path], each.line))


def _in_scripts(pattern: re.Pattern[str], scene: Scene) -> Iterator[tuple[re.Match[str], str, int]]:
    """Yield the first match in the shell script that runs the program, its path, and its line."""
    for script in scene.program.script:
        if match := pattern.search(script.text):
            yield match, script.path, script.text.count("\n", 0, match.start()) + 1


def is_silent(code: str, source: SourceFile, line: int) -> bool:
    """Return True if a comment on that line silences the code: `# orchestrate: ignore[O104]`."""
    row = source.text.split("\n")[line - 1 : line]
    match = re.search(r"#\s*orchestrate:\s*ignore\b\s*(?:\[([\w\s,]*)\])?", "".join(row))
    return match is not None and (match[1] is None or code in re.split(r"[\s,]+", match[1].upper()))


_REPLACED = (
    "the program replaces the TF_CONFIG that orchestrate sets: tasks may then wait for others that never come"
)
_REMOVED = "the program removes the TF_CONFIG that orchestrate sets: each task then trains separately"


# At the start of a line, so under no condition, and not made from the old value.
_SHELL_CONFIG = re.compile(
    r"^(?:(unset +)|export +|declare +-x +)?TF_CONFIG\b(?(1)|=(?!.*TF_CONFIG))", re.MULTILINE
)


def _config(scene: Scene) -> Iterator[Finding]:
    for match, path, line in _in_scripts(_SHELL_CONFIG, scene):
        yield Finding("O101", _REMOVED if match[1] else _REPLACED, "remove that line", path, line)
    for source in scene.sources:
        changes = dict(_changes(source))
        line = next((line for line, is_set in changes.items() if is_set), 0)
        if not line and scene.spread and not scene.names("ClusterResolver"):
            made = [call.lineno for call in source.calls if called(call) == "MultiWorkerMirroredStrategy"]
            line = next((line for line in changes if line < max(made, default=0)), 0)
        named = (
            node.lineno
            for node in source.nodes
            if isinstance(node, ast.Constant) and node.value == "TF_CONFIG" and node.lineno < line
        )
        if line and all(name in changes for name in named):
            yield Finding(
                "O101",
                _REPLACED if changes[line] else _REMOVED,
                "remove that line, or set TF_CONFIG only where it is not set yet",
                source.path,
                line,
            )


def _batch(scene: Scene) -> Iterator[Finding]:
    own = "distribute_datasets_from_function|DatasetCreator|dataset_fn|InputContext"
    if not scene.spread or scene.names(own):
        return
    for source, call in scene.calls("fit", "experimental_distribute_dataset"):
        size = source.number(argument(call, 99, "batch_size"))
        data = source.value(argument(call, 0, "x"))
        made = [
            node
            for node in (ast.walk(data) if size is None and data is not None else ())
            if isinstance(node, ast.Call) and called(node) in ("batch", "padded_batch")
        ]
        if len(made) == 1:
            size = source.number(argument(made[0], 0, "batch_size"))
        if size is not None and size % scene.workers:
            yield Finding(
                "O104",
                f"a batch of {size} is not shared equally by {scene.workers} workers: in each step some wait"
                " for others",
                f"choose a multiple of {scene.workers}, or {size} for each: {size * scene.workers}",
                source.path,
                call.lineno,
            )


def _saving(scene: Scene) -> Iterator[Finding]:
    """Detect it if a host has several tasks, or hosts share their folders: then all tasks use one folder."""
    trainers = [task.host for task in scene.tasks if task.id.role in (Role.CHIEF, Role.WORKER)]
    crowd = next((host for host in trainers if trainers.count(host) > 1), "")
    apart = scene.names(r"chdir|task_id|task_type|is_chief") or not (crowd or scene.one_folder)
    if apart or not scene.spread:
        return
    who = f"those of {crowd} share their folder" if crowd else "these hosts share their working folder"
    models = {dotted(call.func).rpartition(".")[0] for _, call in scene.calls("fit")} - {""}
    saving = [(*hit, "filepath") for hit in scene.calls("save", "save_weights")]
    if scene.recipe.legacy_keras is None:  # those of tf_keras write elsewhere unless they are the chief
        saving += [(*hit, "filepath") for hit in scene.calls("ModelCheckpoint")]
        saving += [(*hit, "backup_dir") for hit in scene.calls("BackupAndRestore")]
    for source, call, name in saving:
        path = text(argument(call, 0, name))
        of_a_model = dotted(call.func).rpartition(".")[0] in models
        if path and (of_a_model or not called(call).startswith("save")):
            yield Finding(
                "O105",
                f"all tasks write {path}, and {who}",
                "write the task's number into the path: `strategy.cluster_resolver.task_id`, or `index` in"
                " TF_CONFIG",
                source.path,
                call.lineno,
            )


# Modules of Python that TensorFlow, PyTorch or JAX import, and packages that training programs import.
_MODULES = re.compile(
    r"argparse|array|ast|asyncio|base64|bisect|calendar|code|codeop|collections|colorsys|concurrent"
    r"|contextlib|copy|csv|ctypes|dataclasses|datetime|decimal|difflib|dis|email|enum|fractions|functools"
    r"|getpass|glob|gzip|hashlib|http|importlib|inspect|json|keyword|locale|logging|multiprocessing"
    r"|numbers|operator|pathlib|pdb|pickle|platform|pprint|queue|random|re|resource|secrets|select"
    r"|selectors|shutil|signal|socket|ssl|statistics|string|struct|subprocess|tarfile|tempfile|textwrap"
    r"|threading|timeit|token|tokenize|traceback|types|typing|unittest|urllib|uuid|warnings|weakref|xml"
    r"|zipfile"
)
_PACKAGES = re.compile(
    r"absl|cv2|flax|h5py|jax|keras|matplotlib|numpy|optax|pandas|requests|scipy|sklearn|tensorboard"
    r"|tensorflow|tensorflow_datasets|tf_keras|torch|torchvision|tqdm|transformers|wandb|yaml"
)


def hiding(command: tuple[str, ...], sent: Collection[str], sources: Sequence[SourceFile]) -> list[str]:
    """Return the files next to a program that Python imports instead of a package or its own module."""
    if not sources:
        return []
    folder = "" if command and invocation.module_name(command) else posixpath.dirname(sources[0].path)
    imported = {name for source in sources for name in source.imports if _PACKAGES.fullmatch(name)}
    beside = [path for path in sent if path.endswith(".py") and posixpath.dirname(path) == folder]
    names = {path: posixpath.basename(path).removesuffix(".py") for path in beside}
    return sorted(path for path, name in names.items() if name in imported or _MODULES.fullmatch(name))


def _hiding(scene: Scene) -> Iterator[Finding]:
    for source in scene.program.hiding:
        name = posixpath.basename(source.path).removesuffix(".py")
        yield Finding(
            "O106",
            f"Python imports this file instead of its own module or package {name}, also in libraries",
            "rename it",
            source.path,
            1,
        )


def _servers(scene: Scene) -> Iterator[Finding]:
    """Detect a program for parameter servers in a run without any: its workers would wait forever."""
    own = scene.names("SimpleClusterResolver")  # each task makes a cluster of its own
    if scene.workers < 2 or own or any(task.id.role is Role.PS for task in scene.tasks):
        return
    for source, call in scene.calls("ParameterServerStrategy"):
        yield Finding(
            "O107",
            "no host has the role of a parameter server, which the program's strategy needs",
            'give one host role = "chief" and at least one role = "ps" in hosts.toml',
            source.path,
            call.lineno,
        )


def _lightning(scene: Scene) -> Iterator[Finding]:
    """Detect numbers that differ from the run's: LOCAL_RANK keeps Lightning from starting processes."""
    counts = Counter(task.host for task in scene.tasks)
    is_python = all(
        invocation.PYTHON.match(posixpath.basename(task.argv[0])) and "LOCAL_RANK" in task.env
        for task in scene.tasks
    )
    own = scene.names(
        r"(?:del |pop\().*LOCAL_RANK|LOCAL_RANK.\]\s*=|ddp_(?:spawn|fork|notebook)|start_method"
        r"|ClusterEnvironment"
    )
    if len({*counts.values()}) != 1 or not is_python or own:
        return
    hosts, tasks = len(counts), max(counts.values())
    made = [
        (source, call)
        for source, call in scene.calls("Trainer", "Fabric")
        if {"lightning", "pytorch_lightning"} & {*source.imports}
    ]
    for source, call in made:
        if any(keyword.arg is None for keyword in call.keywords):
            continue
        given = argument(call, 99, "num_nodes")
        nodes = source.number(given) if given else 1
        devices = _devices(source, call)
        unequal = devices not in (None, tasks) or nodes not in (None, hosts)
        # Another one may test on one device what all have trained.
        if unequal and (len(made) == 1 or (devices or 1) * (nodes or 1) > 1):
            named = {"num_nodes": nodes, "devices": devices}
            yield Finding(
                "O108",
                "Lightning expects the processes of"
                f" {', '.join(f'{name}={number}' for name, number in named.items() if number)},"
                f" but the run has {hosts} x {tasks} (hosts x tasks), and Lightning starts none itself",
                f"set num_nodes={hosts} and devices={tasks}, or change `tasks` of the hosts in hosts.toml",
                source.path,
                call.lineno,
            )


_LOOPBACK = re.compile(r"(?:tcp://)?(?:localhost|127(?:\.\d+){3})(?::|$)")
_SHELL_ADDRESS = re.compile(
    r"^(?:export +)?MASTER_ADDR=[\"']?(localhost|127(?:\.\d+){3})(?![\w.])", re.MULTILINE
)


def _meeting(scene: Scene) -> Iterator[Finding]:
    """Detect an address at which only tasks of one machine meet, as in tutorials for several GPUs."""
    if scene.recipe.standalone or len({task.host for task in scene.tasks}) < 2:
        return
    what = "{} is another machine on each host, so that the tasks never meet"
    for match, path, line in _in_scripts(_SHELL_ADDRESS, scene):
        yield Finding("O109", what.format(match[1]), "remove that setting", path, line)
    argv = tuple(scene.tasks[0].argv)
    # A shell script has options of its own, and torchrun has the ranks.
    is_direct = invocation.PYTHON.match(posixpath.basename(argv[0])) and invocation.program(argv)
    options = invocation.options_of(argv) if is_direct else None
    for source in scene.sources:
        for name, address, line in _addresses(source, options):
            if not _LOOPBACK.match(address or ""):
                continue
            fix = f"remove that setting: `{name}()` needs no arguments"
            if name.startswith("--"):
                own = f"{name} tcp://$MASTER_ADDR:$MASTER_PORT --rank $RANK --world-size $WORLD_SIZE"
                fix = f"in a command for `bash -c`, give the program {own}"
            elif any(called(call) == "spawn" for call in source.calls):
                fix += "; instead of `spawn`, call the function once, with RANK and WORLD_SIZE of os.environ"
            yield Finding("O109", what.format(address), fix, source.path, line)


def _addresses(
    source: SourceFile, options: Mapping[str, str] | None
) -> Iterator[tuple[str, str | None, int]]:
    """Yield each meeting point of a program: the function or option that takes it, its text, and its line.

    A variable set below an `if` is not one: the program may know that it runs alone.
    """
    bodies = (node.body for node in source.nodes if isinstance(node, ast.FunctionDef))
    for statement in chain(source.statements, *bodies):
        match statement:
            case ast.Assign(targets=[ast.Subscript(value=target, slice=key)], value=value):
                if dotted(target).endswith("environ") and text(key) == "MASTER_ADDR":
                    yield "init_process_group", text(value), statement.lineno
    for call in source.calls:
        if called(call) == "init_process_group":
            yield "init_process_group", text(argument(call, 1, "init_method")), call.lineno
        elif dotted(call.func).endswith("distributed.initialize"):
            yield "jax.distributed.initialize", text(argument(call, 0, "coordinator_address")), call.lineno
        elif options is not None and called(call) == "add_argument":
            name = text(argument(call, 0, "")) or ""
            address = options.get(name[2:], text(argument(call, 99, "default")) or "")
            is_set = re.search(rf"\.{re.escape(name[2:].replace('-', '_'))}\s*=[^=]", source.text)
            if name.startswith("--") and address.startswith("tcp://") and not is_set:
                yield name, address, call.lineno


def _devices(source: SourceFile, call: ast.Call) -> int | None:
    given = source.value(argument(call, 99, "devices"))
    if isinstance(given, ast.List):
        return len(given.elts)
    number = source.number(given)
    return number if number and number > 0 else None


# --- remarks on commands and shell scripts, without a code ---

_NODE_RANK = re.compile(r"--(?:node[_-]rank|machine_rank)\b(?:[= ]+\d+)?|\bNODE_RANK=\d+")
_ALIKE = re.compile(r"--[\w-]+[= ]+\d+|NODE_RANK=\d+(?: --[\w-]+)?")  # with others the script chooses
_ONE_NODE = re.compile(r"--nnodes[= ]1(?![\d:])")
_SAME = "{} is the same on all hosts: use $NODE_RANK and $NNODES, which are set for each"
_RUNS = r"\b(?:python[\d.]*|torchrun|accelerate)\b"
_LEFT = re.compile(rf"(?m)^.*{_RUNS}.*[^&\s]\s*&\s*$(?![\s\S]*(?:{_RUNS}|\bwait\b))")  # the last one
_WAIT = "the program that the script starts with & is ended when the script ends: add `wait` to it"
_BATCH = re.compile(r"\bR CMD BATCH(?:\s+-\S+)*\s+([\w./-]+)")
_TO_FILE = "R CMD BATCH writes all output to a file on the host: with `Rscript {}` it appears here"
# Other launchers, which do not read our variables; deepspeed can be given the rank of its host.
_LAUNCHER = re.compile(
    r"(?m)(?:^|[;&|(])\s*(?:\S*/)?(deepspeed(?!.*--node_rank)|horovodrun|mpirun|mpiexec|srun|fabric run"
    r"|lightning run)\s"
)
_OWN = (
    "{} runs on each host, where it starts processes of its own: the hosts train separately; launch the"
    " Python script itself (docs/coming-from.md)"
)


def remarks(programs: Sequence[Program], *, several: bool) -> list[str]:
    """Return notes on the programs' commands and scripts, which run on one host or on `several`."""
    shells = [invocation.shell_code(program.shell) for program in programs]
    lines = [f"{' '.join(program.command)}\n{shell}" for program, shell in zip(programs, shells, strict=True)]
    others = [_OWN.format(match[1]) for match in map(_LAUNCHER.search, lines) if match and several]
    given = [_NODE_RANK.findall(shell) for shell in shells if several]
    given += [_ONE_NODE.findall(shell) for shell in shells if several and not is_standalone(shell)]
    same = [_SAME.format(ranks[0]) for ranks in given if _ALIKE.fullmatch(" ".join(ranks))]
    others += [_TO_FILE.format(match[1]) for match in map(_BATCH.search, lines) if match]
    return others + same + [_WAIT] * any(map(_LEFT.search, shells))


# --- paths ---

MOST_PATHS = 20
_WRITTEN = re.compile(
    r"out|log|runs?$|ckpt|check|save|result|export|model|cache|te?mp|board|profil|dest|write", re.IGNORECASE
)
_OF_THE_SYSTEM = re.compile(
    r"/(?:bin|boot|dev|etc|lib\w*|proc|run|sbin|sys|te?mp|usr|var/(?:log|te?mp|run))(?:/|$)"
)
_PATH = re.compile(r"(?:/|~/)[^\n\0*?\[{%]{1,300}")


def own_paths(
    command: Collection[str],
    sources: Collection[SourceFile],
    links: Mapping[str, str],
    is_own: Callable[[str], bool],
) -> dict[str, str]:
    """Return absolute paths that hosts may lack, each with its line or link; "" for an argument.

    Names of outputs are left out, since the program may only write there, and so are paths whose existence
    it checks first.
    """
    paths: dict[str, str] = {}
    option = ""
    for word in command:
        name, _, value = word.rpartition("=")
        if not _WRITTEN.search(name or option) and not _WRITTEN.match(value.rpartition("/")[2]):
            paths[value] = ""
        option = word if word.startswith("-") else ""
    asks = re.compile(r"exists|isdir|isfile|is_dir|is_file|makedirs|mkdir")
    for source in sources:
        checked = {
            text(node) for call in source.calls if asks.search(called(call)) for node in ast.walk(call)
        }
        for node in source.nodes:
            path = text(node)
            if (
                not isinstance(node, ast.Constant)
                or not path
                or path in checked
                or _OF_THE_SYSTEM.match(path)
            ):
                continue
            if not any(map(_WRITTEN.match, path.split("/"))) and not is_silent(PATH, source, node.lineno):
                paths.setdefault(path, f"{source.path}, line {node.lineno}")
    paths = {**{path: link for path, link in links.items() if not _OF_THE_SYSTEM.match(path)}, **paths}
    own = ((path, line) for path, line in paths.items() if _PATH.fullmatch(path) and is_own(path))
    return dict(islice(own, MOST_PATHS))


def _changes(source: SourceFile) -> Iterator[tuple[int, bool]]:
    """Yield the line of each change of TF_CONFIG at the top of a file, and whether that sets it."""
    for statement in source.statements:
        match statement:
            case (
                ast.Assign(targets=[ast.Subscript(value=target, slice=key)])
                | ast.Delete(targets=[ast.Subscript(value=target, slice=key)])
            ):
                if dotted(target).endswith("environ") and text(key) == "TF_CONFIG":
                    yield statement.lineno, isinstance(statement, ast.Assign)
            case ast.Expr(value=ast.Call() as call) if dotted(call.func).endswith("environ.pop"):
                if text(argument(call, 0, "key")) == "TF_CONFIG":
                    yield statement.lineno, False


def read_program(command: tuple[str, ...], code: Code) -> Program:
    """Read the program of a command, and what it imports of the code."""
    files = sources.read(command, code.text)
    beside = tuple(SourceFile(path, code.text(path) or "") for path in hiding(command, code.sent, files))
    own = own_paths(command, files, code.links, lambda path: code.exists(path) and not code.everywhere(path))
    shell, name = invocation.shell_text(command, code.text), invocation.program(command)
    script = (SourceFile(name, code.text(name) or ""),) if shell and name else ()
    return Program(
        command, files, beside, shell, script, own, sources.scripts(code.text).get("".join(command[:1]))
    )
