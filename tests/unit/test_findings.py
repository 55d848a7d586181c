"""Findings: each code said where it is true, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.model import AutoShard, Host, Inventory, Job, Role
from orchestrator.planning import plan
from orchestrator.program import findings, sources
from orchestrator.program.findings import Scene
from orchestrator.program.sources import SourceFile
from orchestrator.requests import LaunchRequest
from tests.scripts.corpus import ALL

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/scripts/programs"
HEAD = "import os\nimport numpy as np\nimport tensorflow as tf\nimport tensorflow_datasets as tfds\n"
MADE = "strategy = tf.distribute.MultiWorkerMirroredStrategy()\nwith strategy.scope():\n    model = build()\n"
WORKERS = (Role.WORKER,) * 4


@dataclass(frozen=True)
class Case:
    """A program, and the code of what is found in it; "" for nothing."""

    text: str
    code: str = ""
    roles: tuple[Role, ...] = WORKERS
    tasks: int = 1  # of each host
    beside: str = ""  # a file in the program's folder


def scene(files: tuple[SourceFile, ...], roles: tuple[Role, ...], job: Job, tasks: int = 1) -> Scene:
    hosts = tuple(Host(f"h{n}", f"h{n}", f"h{n}", role=role, tasks=tasks) for n, role in enumerate(roles))
    request = LaunchRequest(inventory=Inventory(hosts, job=job), command=("train.py",))
    made, _ = plan.make(request, plan.LaunchFacts(run="r1", owner="ada@laptop", created=1e9, sources=files))
    return Scene(made.tasks, made.recipe, files)


def of(case: Case) -> Scene:
    sources = (SourceFile("train.py", HEAD + case.text),)
    paths = findings.hiding(("train.py",), {"train.py", case.beside}, sources)
    hiding = tuple(SourceFile(path, case.text) for path in paths)
    return replace(scene(sources, case.roles, Job(), case.tasks), hiding=hiding)


ENV = "os.environ['TF_CONFIG'] = '{}'\n"
LEGACY = "os.environ['TF_USE_LEGACY_KERAS'] = '0'\n"
FIT = "model.fit(data.batch(50), epochs=2)"
SAVE = "model.fit(x)\nmodel.save('model.h5')"

CASES = {
    "TF_CONFIG written": Case(ENV, "O101"),
    "TF_CONFIG removed, written, read": Case(
        "os.environ.pop('TF_CONFIG', None)\nc = {}\nos.environ['TF_CONFIG'] = json.dumps(c)\n"
        "c = json.loads(os.environ['TF_CONFIG'])",
        "O101",
    ),
    "TF_CONFIG where it is not set": Case(f"if 'TF_CONFIG' not in os.environ:\n    {ENV}"),
    "TF_CONFIG made from the old one": Case(
        "c = os.environ.get('TF_CONFIG')\nos.environ['TF_CONFIG'] = c + x"
    ),
    "TF_CONFIG, silenced": Case(ENV.replace("\n", "  # orchestrate: ignore[O101]\n")),
    "Keras 3 on several tasks": Case(LEGACY + MADE + FIT.replace("50", "64"), "O102"),
    "Keras 3 on one task": Case(LEGACY + MADE, roles=(Role.WORKER,)),
    "a batch": Case(MADE + FIT, "O104"),
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
    "a text that no Python reads": Case("x = (\n" + ENV),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_code_is_told_where_it_is_true(case: Case) -> None:
    assert [found.code for found in findings.find(of(case))] == ([case.code] if case.code else [])


def test_a_path_is_one_on_hosts_that_share_their_folder() -> None:
    alone = of(Case(MADE + SAVE))
    (found,) = findings.find(replace(alone, one_folder=True))
    assert (found.code, found.path, found.line) == ("O105", "train.py", 9)


def test_every_code_has_a_case_and_a_section() -> None:
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

    assert findings.own_paths(words.split(), (SourceFile("train.py", text),), here) == own


def launched() -> Iterator[tuple[str, tuple[tuple[Role, ...], Job, str]]]:
    """Each program of the corpus, as it is launched there."""
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
def test_nothing_false_is_found_in_a_program_that_trains(name: str) -> None:
    roles, job, path = CORPUS[name]

    def read(path: str) -> str | None:
        return (PROGRAMS / path).read_text() if (PROGRAMS / path).is_file() else None

    files = tuple(SourceFile(where, text) for where, text in sources.closure(path, read))
    assert files
    assert findings.find(scene(files, roles, job)) == ()
