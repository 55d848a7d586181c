"""Problems of a program or command, reported before anything is sent, and only where they apply."""

import contextlib
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.cli.args.parser import parse
from orchestrator.errors import HelpRequested, UsageError
from orchestrator.model import AutoShard, Host, Inventory, Job, Role
from orchestrator.planning import plan
from orchestrator.program import findings, refusals, sources
from orchestrator.program.findings import Program, Scene, read_program
from orchestrator.program.refusals import Code
from orchestrator.program.sources import SourceFile
from orchestrator.requests import LaunchRequest
from orchestrator.sync.contents import check_builtin
from orchestrator.verbs import code
from tests.scripts.corpus import ALL

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/scripts/programs"
HEAD = "import os\nimport numpy as np\nimport tensorflow as tf\nimport tensorflow_datasets as tfds\n"
MADE = "strategy = tf.distribute.MultiWorkerMirroredStrategy()\nwith strategy.scope():\n    model = build()\n"
WORKERS = (Role.WORKER,) * 4


@dataclass(frozen=True)
class Case:
    """A program, and the code of its finding; "" for none."""

    text: str
    code: str = ""
    roles: tuple[Role, ...] = WORKERS
    tasks: int = 1  # of each host
    beside: str = ""  # a file in the program's folder


def scene(files: tuple[SourceFile, ...], roles: tuple[Role, ...], job: Job, tasks: int = 1) -> Scene:
    hosts = tuple(Host(f"h{n}", f"h{n}", f"h{n}", role=role, tasks=tasks) for n, role in enumerate(roles))
    made, _ = plan.make(
        LaunchRequest(inventory=Inventory(hosts, job=job), command=("train.py",)), facts(files)
    )
    return Scene(made.tasks, made.recipe, Program((), files))


def facts(files: tuple[SourceFile, ...]) -> plan.LaunchFacts:
    return plan.LaunchFacts(run="r1", owner="ada@laptop", created=1e9, programs=(Program((), files),))


def of(case: Case) -> Scene:
    sources = (SourceFile("train.py", HEAD + case.text),)
    paths = findings.hiding(("train.py",), {"train.py", case.beside}, sources)
    hiding = tuple(SourceFile(path, case.text) for path in paths)
    return replace(scene(sources, case.roles, Job(), case.tasks), program=Program((), sources, hiding=hiding))


ENV = "os.environ['TF_CONFIG'] = '{}'\n"
SAVE = "model.fit(x)\nmodel.save('model.h5')"
FIT = "model.fit(data.batch(50), epochs=2)"
SERVERS = "strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.%s())"
TORCH = """import torch
def setup(rank, world_size):
    os.environ['MASTER_ADDR'] = '%s'
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world_size)
torch.multiprocessing.spawn(setup, args=(2,), nprocs=2)
"""
OPTION = "import torch.distributed\np.add_argument('--dist-url', default='tcp://127.0.0.1:23456', type=str)\n"
LIGHTNING = "import lightning as L\nt = L.Trainer(%s)\n"

CASES = {
    "TF_CONFIG written": Case(ENV, "O101"),
    "TF_CONFIG removed, written, read": Case(
        "os.environ.pop('TF_CONFIG', None)\nc = {}\nos.environ['TF_CONFIG'] = json.dumps(c)\n"
        "c = json.loads(os.environ['TF_CONFIG'])",
        "O101",
    ),
    "TF_CONFIG removed": Case("os.environ.pop('TF_CONFIG', None)\n" + MADE, "O101"),
    "TF_CONFIG removed for a resolver": Case(
        "del os.environ['TF_CONFIG']\nr = SimpleClusterResolver(c)\n" + MADE.replace("()", "(r)", 1)
    ),
    "TF_CONFIG removed at the end": Case(MADE + "os.environ.pop('TF_CONFIG', None)\n"),
    "TF_CONFIG where it is not set": Case(f"if 'TF_CONFIG' not in os.environ:\n    {ENV}"),
    "TF_CONFIG made from the old one": Case(
        "c = os.environ.get('TF_CONFIG')\nos.environ['TF_CONFIG'] = c + x"
    ),
    "TF_CONFIG, silenced": Case(ENV.replace("\n", "  # orchestrate: ignore[O101]\n")),
    "a batch": Case(MADE + FIT, "O104"),
    "no parameter server": Case(SERVERS % "TFConfigClusterResolver", "O107"),
    "a parameter server": Case(SERVERS % "TFConfigClusterResolver", roles=(Role.CHIEF, Role.PS, *WORKERS)),
    "one task, as on a laptop": Case(SERVERS % "TFConfigClusterResolver", roles=WORKERS[:1]),
    "a cluster in each task": Case(SERVERS % "SimpleClusterResolver"),
    "a batch by a name": Case("B = 5 * 10\nd = load().shuffle(9).batch(B)\n" + MADE + "model.fit(d)", "O104"),
    "a batch that divides": Case(MADE + FIT.replace("50", "64")),
    "a batch without a strategy": Case(FIT),
    "a batch for each": Case(MADE + "strategy.distribute_datasets_from_function(f)\n" + FIT),
    "a path of two tasks": Case(MADE + SAVE, "O105", tasks=2),
    "a path with the task": Case(MADE + "n = strategy.cluster_resolver.task_id\n" + SAVE, tasks=2),
    "a path of a host each": Case(MADE + SAVE),
    "a module of Python": Case("", "O106", beside="random.py"),
    "a module of Python, silenced": Case("# orchestrate: ignore[O106]", beside="random.py"),
    "a module of Python in a package": Case("", beside="lib/random.py"),
    "a module that no library imports": Case("", beside="test.py"),
    "a package": Case("", "O106", beside="tensorflow.py"),
    "a package that is not imported": Case("", beside="torch.py"),
    "Lightning with more processes": Case(LIGHTNING % "devices=2, num_nodes=4", "O108"),
    "Lightning with more processes on one host": Case(LIGHTNING % "devices=[0, 1]", "O108", WORKERS[:1]),
    "Lightning with more hosts": Case(LIGHTNING % "num_nodes=8", "O108"),
    "Lightning without numbers": Case(LIGHTNING % "max_epochs=3", "O108"),
    "Lightning's own numbers": Case(LIGHTNING % "devices=2, num_nodes=4", tasks=2),
    "Lightning, once in each task": Case(LIGHTNING % "devices=1" + "L.Trainer()"),
    "Lightning by arguments": Case(LIGHTNING % "devices=a.devices, num_nodes=a.nodes"),
    "Lightning with processes of its own": Case(LIGHTNING % "devices=2, strategy='ddp_spawn', num_nodes=4"),
    "MASTER_ADDR of one machine": Case(TORCH % "localhost", "O109"),
    "MASTER_ADDR of one machine, on one host": Case(TORCH % "localhost", roles=WORKERS[:1], tasks=2),
    "MASTER_ADDR of another machine": Case(TORCH % "10.0.0.1"),
    "MASTER_ADDR where it is not set": Case(
        "import torch\nos.environ.setdefault('MASTER_ADDR', 'localhost')\n"
        "if 'MASTER_ADDR' not in os.environ:\n    os.environ['MASTER_ADDR'] = 'localhost'"
    ),
    "a meeting point of one machine": Case(
        "import torch\ntorch.distributed.init_process_group('gloo', init_method='tcp://127.0.0.1:23456')",
        "O109",
    ),
    "an option for a meeting point of one machine": Case(OPTION, "O109"),
    "an option of odd letters": Case(
        "import torch.distributed\np.add_argument('--a(', default='tcp://10.0.0.1')"
    ),
    "an option for a meeting point, set later": Case(f"{OPTION}args.dist_url = 'env://'"),
    "JAX's meeting point of one machine": Case(
        "import jax\njax.distributed.initialize('localhost:1234', 2, 0)", "O109"
    ),
    "a text that no Python reads": Case("x = (\n" + ENV),
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("export TF_CONFIG='{}'\npython3 train.py", ("O101", 2)),
        ("cd src\nTF_CONFIG=$1 python3 train.py", ("O101", 3)),
        ("unset TF_CONFIG", ("O101", 2)),
        ("export TF_CONFIG='{}'  # orchestrate: ignore[O101]", None),
        ("export TF_CONFIG=${TF_CONFIG:-x}", None),
        ('if [ -z "$TF_CONFIG" ]; then\n  export TF_CONFIG=x\nfi', None),
        ("export MY_TF_CONFIG=x TF_CONFIGS=y", None),
        ("export MASTER_ADDR=localhost", ("O109", 2)),
        ("MASTER_ADDR='127.0.0.1' python3 train.py", ("O109", 2)),
        ("export MASTER_ADDR=localhost.example.org", None),
    ],
)
def test_variables_that_a_shell_script_replaces_are_found(text: str, found: tuple[str, int] | None) -> None:
    program = "import torch\n" if "MASTER" in text else HEAD + MADE
    files = {"run.sh": f"#!/bin/sh\n{text}\npython3 train.py\n".encode(), "train.py": program.encode()}
    project = Code("/project", frozenset(files), files.get, files.__contains__, bool)
    read = read_program(("bash", "run.sh"), project)
    all_found = findings.find(replace(scene(read.sources, WORKERS, Job()), program=read))
    assert [(one.code, one.line) for one in all_found] == [found] * (found is not None)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_findings_appear_exactly_where_they_apply(case: Case) -> None:
    assert [found.code for found in findings.find(of(case))] == ([case.code] if case.code else [])


def test_hosts_meant_to_train_separately_rendezvous_at_localhost() -> None:
    together = of(Case(TORCH % "localhost"))
    assert not findings.find(replace(together, recipe=replace(together.recipe, standalone=True)))


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python train.py --dist-url=tcp://localhost:10001", True),
        ("python train.py --dist-url tcp://10.0.0.1:10001", False),
        ("bash -c 'python train.py --dist-url tcp://$MASTER_ADDR:$MASTER_PORT'", False),
        ("torchrun train.py", False),
    ],
)
def test_an_option_of_the_command_is_where_tasks_meet(command: str, found: bool) -> None:
    made = of(Case(OPTION))
    tasks = tuple(replace(task, argv=tuple(shlex.split(command))) for task in made.tasks)
    assert bool(findings.find(replace(made, tasks=tasks))) is found


def test_a_plan_has_the_findings_of_every_framework() -> None:
    files = (SourceFile("train.py", LIGHTNING % "devices=2"),)
    hosts = Inventory((Host("h1", "h1", "h1"),))
    _, found = plan.make(LaunchRequest(inventory=hosts, command=("train.py",)), facts(files))
    assert [finding.code for finding in found] == ["O108"]


def test_hosts_sharing_a_folder_have_one_path() -> None:
    alone = of(Case(MADE + SAVE))
    (found,) = findings.find(replace(alone, one_folder=True))
    assert (found.code, found.path, found.line) == ("O105", "train.py", 9)


def test_every_finding_has_a_case_and_a_section() -> None:
    on_hosts = {findings.PROGRAM, findings.PATH}
    assert {case.code for case in CASES.values()} - {""} == set(findings.CODES) - on_hosts
    page = (ROOT / "docs/lint.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (O\d+)$", page, re.MULTILINE) == sorted(findings.CODES)


@pytest.mark.parametrize(
    ("words", "text", "own"),
    [
        ("train.py --data /home/me/data", "", {"/home/me/data": ""}),
        ("train.py --data=/home/me/data x=~/data", "", {"/home/me/data": "", "~/data": ""}),
        ("train.py --log-dir=/home/me/x --out /home/me/x /home/me/out /home/me/*", "", {}),
        ("train.py", "x = read('/home/me/a.csv')", {"/home/me/a.csv": "train.py, line 1"}),
        ("train.py", "D = '/home/me'\nif os.path.exists('/home/me'): pass", {}),
        ("train.py", "x = read('/tmp/a')\nsave('/home/me/model')\nread('a/b')", {}),
        ("train.py", "x = read('/home/me')  # orchestrate: ignore[O203]", {}),
    ],
)
def test_absolute_paths_that_hosts_may_lack(words: str, text: str, own: dict[str, str]) -> None:
    def here(path: str) -> bool:
        return not path.startswith("/elsewhere")

    assert findings.own_paths(words.split(), (SourceFile("train.py", text),), {}, here) == own


def launched() -> Iterator[tuple[str, tuple[tuple[Role, ...], Job, str]]]:
    """Return each program of the corpus with its launch settings."""
    for name, one in ALL.items():
        words = [word for word in one.command if not word.startswith("-")]
        path = next((word for word in words if word.endswith(".py")), None)
        if path is None and "-m" in one.command:
            path = f"{words[1].replace('.', '/')}/__main__.py"
        if path is not None:
            job = Job(auto_shard=AutoShard.DATA) if "auto_shard" in one.job else Job()
            yield name, (tuple(Role(role) for role in one.roles), job, str(Path(one.folder) / path))


CORPUS = dict(launched())


@pytest.mark.parametrize("name", CORPUS)
def test_working_programs_have_no_false_findings(name: str) -> None:
    roles, job, path = CORPUS[name]

    def read(path: str) -> str | None:
        return (PROGRAMS / path).read_text() if (PROGRAMS / path).is_file() else None

    files = tuple(sources.closure(path, read))
    assert files
    assert findings.find(scene(files, roles, job)) == ()


# --- Problems of a command, reported before anything is sent, with a working fix ---

FILES: Mapping[str, str] = {
    "train.py": "import lib\nprint('trained')\n",
    "lib.py": "import pkg.data\n",
    "pkg/__init__.py": "",
    "pkg/__main__.py": "",
    "pkg/data.py": "import keras\n",
    "src/deep/train.py": "",
    "src/deep/__init__.py": "",
    "old.py": "print 'Epoch'\n",
    "open.py": "x = (1,\ny = 2\n",
    "new.py": "type X = int\n",
    "bom.py": "\ufeffprint(1)\n",
    "secret.py": "",
    ".gitignore": "secret.py\nout/\n",
    "ready.sh": "#!/bin/sh\necho ran\n",
    "windows.sh": "#!/bin/bash\r\nset -e\r\necho ran\r\n",
    "tools/windows": "#!/usr/bin/env python3\r\nprint(1)\r\n",
    "windows.py": "print(1)\r\n",
    "prepare": "#!/usr/bin/env -S python3 -u\nprint(1)\n",
    "notes": "no program",
    "my script.py": "",
}
BYTES: Mapping[str, bytes] = {
    "latin.py": b"x = '\xe9'\n",
    "declared.py": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
    "compiled": b"\x7fELF\x02\x01\x01\0",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lint") / "project"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, newline="")
    (root / "out").mkdir()
    (root / "above").symlink_to("..")
    (root / "shared").symlink_to("/home/me/shared")
    (root / "linked").symlink_to("src/deep")
    for name, data in BYTES.items():
        (root / name).write_bytes(data)
    for name in ("ready.sh", "compiled"):
        (root / name).chmod(0o755)
    (root.parent / "beside.py").write_text("")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def look(project: Path) -> Code:
    inventory = Inventory((Host("gpu-1", "gpu-1", "gpu-1"),))
    with contextlib.chdir(project):
        return code.look(inventory, code.project(inventory, None))


# (command line, problem, fix)
MISTAKES = [
    (
        "'python train.py | tee log'",
        "no shell runs the command",
        "-- bash -o pipefail -c 'python train.py | tee log'",
    ),
    (
        "'python train.py --lr 1'",
        "no shell runs the command",
        "`orchestrate launch -- python train.py --lr 1`",
    ),
    ("train.py '|' tee log", "but | needs one", "-- bash -o pipefail -c 'python train.py | tee log'"),
    ("A=1 B='x y' python train.py", "but A=1 needs one", "launch --env A=1 --env 'B=x y' -- python"),
    ("CUDA_VISIBLE_DEVICES=0 train.py", "no shell runs", "launch --env CUDA_VISIBLE_DEVICES=0 -- train.py`"),
    ("'A=1 python train.py'", "no shell runs", "launch --env A=1 -- python train.py`"),
    ("'python train.py $X'", "no shell runs", "bash -o pipefail -c 'python train.py $X'"),
    ("../beside.py", "is outside the folder", "-- beside.py"),
    ("above/beside.py", "is outside the folder", "`cd above`, then `orchestrate launch -- beside.py`"),
    ("HERE/train.py --lr 1", "is a path of this machine", "`orchestrate launch -- train.py --lr 1`"),
    ("python -u trian.py --lr 1", "trian.py does not exist here", None),
    ("./raedy.sh 3", "./raedy.sh does not exist here", None),
    ("ready.sh --lr 1", "ready.sh is in the code", "`orchestrate launch -- sh ready.sh --lr 1`"),
    ("nice -n 5 ready.sh", "ready.sh is in the code", "`orchestrate launch -- nice -n 5 sh ready.sh`"),
    ("prepare x", "prepare is in the code", "`orchestrate launch -- python3 prepare x`"),
    ("bash windows.sh", "windows.sh has Windows line ends", "`sed -i 's/\\r$//' windows.sh`"),
    ("./windows.sh", "./windows.sh has Windows line ends", None),
    ("tools/windows", "tools/windows has Windows line ends", None),
    ("./notes x", "./notes is not executable", "`chmod +x ./notes`"),
    ("secret.py", "exists, but would not be sent", "git check-ignore -v secret.py"),
    ("old.py", "old.py, line 1: Missing parentheses", "python -m py_compile old.py"),
    ("nice -n 5 python open.py", "open.py, line 1: '(' was never closed", None),
    ("python latin.py", "latin.py, line", None),
]


def command_of(line: str, project: Path) -> tuple[str, ...]:
    return tuple(shlex.split(line.replace("HERE", str(project))))


@pytest.mark.parametrize(("line", "what", "way"), MISTAKES, ids=[line for line, *_ in MISTAKES])
def test_a_mistake_is_one_error_with_a_working_fix(
    project: Path, line: str, what: str, way: str | None
) -> None:
    command = command_of(line, project)
    with pytest.raises(UsageError) as caught:
        refusals.check(command, look(project))
    assert what in caught.value.what
    assert way is None or way in caught.value.hint
    for quoted in caught.value.hint.split("`")[1::2]:
        words = shlex.split(quoted)
        if words[:2] != ["orchestrate", "launch"]:
            continue
        parsed = parse(words[1:])
        moved = any("beside" in word for word in parsed.command)
        refusals.check(tuple(parsed.command), look(project.parent if moved else project))


GOOD = [
    "",
    "python train.py",
    "python windows.py",
    "windows.py",
    "notes",
    "bash ready.sh",
    "other.sh",
    "python3 -W ignore -u train.py -m x",
    "python -m worker_entry --epochs 3",
    "bash -c 'python train.py | tee log'",
    "./ready.sh",
    "linked/train.py",
    "./compiled --fast",
    "/opt/on/the/hosts.py",
    "--epochs 3",
    "new.py",
    "bom.py",
    "'my script.py'",
    "train.py '>=2'",
    "Rscript -e 'x <- 1; y'",
    "env A=1 python train.py",
    "declared.py",
    f"bash -c 'python train.py {'--x ' * 2000}'",
    "conda run -n tf python train.py",
    "python -m cProfile train.py",
]


@pytest.mark.parametrize("line", GOOD)
def test_possibly_correct_commands_are_not_reported(project: Path, line: str) -> None:
    refusals.check(tuple(shlex.split(line)), look(project))


def test_links_out_of_the_code_are_reported_as_possibly_missing_paths(project: Path) -> None:
    seen = look(project)
    assert seen.links == {str(project.parent): "the link above", "/home/me/shared": "the link shared"}
    everything = replace(seen, exists=lambda _: True, everywhere=lambda path: path != "/home/me/shared")
    assert read_program(("train.py",), everything).own_paths == {"/home/me/shared": "the link shared"}


def test_the_program_may_be_created_by_the_setup(project: Path) -> None:
    """`setup = "make"`."""
    refusals.check(("./build/train",), replace(look(project), prepared=True))


@pytest.mark.parametrize(
    "line",
    [
        "bash -c 'cd . && python -u train.py --x | tee log'",
        "bash start.sh",
        "bash continued.sh",
        "bash -c '${PYTHON:-python3} train.py'",
        'bash -c \'python "train.py" "$@"\'',
        "nice -n 5 python train.py",
        "conda run -n tf python train.py",
        "env A=1 ./start.sh",
        "python -mtrain",
        "uv run --frozen -m train",
        "python -m cProfile -o out.prof train.py --x",
        "python3 -m coverage run -m train",
        "ipython train.py",
        "poetry run fit",
        "poetry run python train.py fit",
        "bash -c 'uv run train.py'",
        "bash -c 'exec uv run fit'",
        "make fit",
        "bash -eo pipefail start.sh -c 3",
        "bash -xo pipefail -c 'python train.py'",
        "sh go",
        "./go",
    ],
)
def test_a_program_run_by_a_shell_is_read_too(line: str) -> None:
    """Its imports determine its Keras, however it is started."""
    texts = {"start.sh": "#!/bin/bash\n# python old.py\nset -e\npython train.py --epochs $1\n", **FILES}
    texts["Makefile"] = "test:\n\tpython test.py\nfit: test\n\t@mkdir -p out\n\t$(PYTHON) train.py\n"
    texts |= {"pyproject.toml": '[project.scripts]\nfit = "train:main"\n', "test.py": ""}
    texts["go"] = "#!/usr/bin/env bash\npython train.py\n"
    texts["continued.sh"] = "python3 \\\n  -u \\\n  train.py \\\n  --epochs 3\n"
    command = tuple(shlex.split(line))
    paths = [source.path for source in sources.read(command, texts.get)]
    assert paths == ["train.py", "lib.py", "pkg/__init__.py", "pkg/data.py"]


@pytest.mark.parametrize("line", ["bash -c 'cd ./deep && python fit.py'", "bash outer.sh", "./run/a.sh"])
def test_a_program_in_a_folder_entered_by_a_shell_is_read(line: str) -> None:
    texts = {
        "deep/fit.py": "import torch\n",
        "deep/in.sh": "python -m fit\n",
        "outer.sh": "cd deep\n./in.sh\n",
    }
    texts["run/a.sh"] = 'cd "$(dirname "$0")/.."\npushd deep/\nexec python fit.py "$@"\n'
    assert [source.path for source in sources.read(tuple(shlex.split(line)), texts.get)] == ["deep/fit.py"]


def test_a_module_is_read_but_files_a_shell_only_mentions_are_not(project: Path) -> None:
    texts = {"pkg/a.py": "from . import lib\n", "pkg/lib.py": "", "/__init__.py": ""}  # the last is elsewhere
    read = sources.read(("python", "-m", "pkg.a"), texts.get)
    assert [source.path for source in read] == ["pkg/a.py", "pkg/lib.py"]
    below = {f"src/pkg/{name}.py": "from pkg import lib" for name in ("__init__", "a", "lib")}
    read = sources.read(("python", "-m", "pkg.a"), {**below, "/__init__.py": ""}.get)
    assert {source.path for source in read} == set(below)
    for line in ("bash -c 'echo train.py'", "bash -c 'mypython train.py'", "bash", "bash -c", "./nothing.sh"):
        assert sources.read(tuple(shlex.split(line)), look(project).text) == ()


@pytest.mark.parametrize(
    ("project", "paths"),
    [
        ('[project.scripts]\nfit = "acme.cli:main"\n', ["src/acme/cli.py"]),
        ('[tool.poetry.scripts]\nfit = "acme.cli:main"\n', ["src/acme/cli.py"]),
        ('[project.scripts]\nother = "acme.cli:main"\n', []),
        ("[project]\nscripts = 3\n", []),
        ("project = 3\n", []),
        ("[project", []),
    ],
)
def test_a_command_declared_by_the_project_is_read(project: str, paths: list[str]) -> None:
    texts = {"pyproject.toml": project, "src/acme/cli.py": "import torch\n"}
    assert [source.path for source in sources.read(("fit", "--lr", "1"), texts.get)] == paths


def test_options_of_worker_entry_are_checked_locally(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--ephocs=3", "--epochs=x", "--epochs=0"):
        with pytest.raises(UsageError, match=r"--ep"):
            check_builtin((option,))
    with pytest.raises(HelpRequested) as caught:
        check_builtin(("--help",))
    assert "--epochs" in caught.value.text
    assert capsys.readouterr() == ("", "")
