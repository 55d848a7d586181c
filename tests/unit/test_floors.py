"""The architecture in CONTRIBUTING.md: which module may import which."""

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# From the bottom up.
FLOORS = (
    "errors model requests names events text quoting nearest orchestrate_rank timings value node",
    "config planning program frameworks checks run diagnosis wire export ranges plainfile unbroken processes",
    "transport clock ssh command slurm fleet sync store rehearsal envs",
    "phases connectors",
    "verbs",
    "render",
    "report",
    "cli api",
    "__main__",
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split()}
# Not libraries: the name under which hosts import `node`, and a hook that any environment may have.
OF_NODES = {"orchestrate_node", "sitecustomize", "site_frameworks", "site_meeting", "site_standby"}

# Rooms without effects may import their neighbors; above them, each effect stays in one room.
PURE = {0, 1}
# The seams: between us and hosts, and between us and time.
SEAMS = {"transport", "clock"}

# Allowed by the floors, but forbidden: phases depend on the seam, not on its implementations.
FORBIDDEN = {"phases": {"ssh", "command"}}

# Third-party packages, and the only place that may import each; all others are forbidden.
DOORS = {
    "argcomplete": ("orchestrator.cli.completion",),
    "argparse": ("orchestrator.cli", "orchestrator.orchestrate_rank"),  # which is a separate program
    "fabric": ("orchestrator.ssh", "orchestrator.rehearsal"),
    "paramiko": ("orchestrator.ssh", "orchestrator.rehearsal"),
    "jinja2": ("orchestrator.report.page",),
    "invoke": ("orchestrator.ssh", "orchestrator.rehearsal"),
    "rich": tuple(f"orchestrator.render.{name}" for name in ("live", "progress")),
    "tensorflow": (),
    "yaml": ("orchestrator.export.kubernetes",),
    "tf_keras": (),
    "keras": (),
    "numpy": (),
}


@dataclass(frozen=True)
class Module:
    name: str  # orchestrator.ssh.resolve
    path: Path

    @property
    def room(self) -> str:
        """Return the part below `orchestrator`; "" for the package itself."""
        return ".".join(self.name.split(".")[1:2])

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Import:
    source: Module
    line: int
    target: str  # absolute; for `from a import b`: a.b if that is a module, else a
    relative: bool

    def __str__(self) -> str:
        return f"{self.source.path.relative_to(ROOT)}:{self.line}: {self.source.name} imports {self.target}"


def modules(package: str) -> dict[str, Module]:
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path)
    return found


ORCHESTRATOR = modules("orchestrator")


def imports(module: Module, known: dict[str, Module]) -> Iterator[Import]:
    """Return every import of a module, including those in functions and under TYPE_CHECKING."""
    tree = ast.parse(module.path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, node.lineno, alias.name, relative=False)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = module.package.split(".")
                anchor = anchor[: len(anchor) - node.level + 1]
                base = ".".join([*anchor, base] if base else anchor)
            for alias in node.names:
                name = f"{base}.{alias.name}"
                target = name if name in known else base
                yield Import(module, node.lineno, target, relative=node.level > 0)


@functools.cache
def all_imports(package: str) -> tuple[Import, ...]:
    """Read all imports once for all tests."""
    known = modules(package)
    return tuple(found for module in known.values() for found in imports(module, known))


def under(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def ours(found: Import) -> bool:
    return under(found.target, "orchestrator")


def room_of(name: str) -> str:
    return ".".join(name.split(".")[1:2])


def floors_allow(source: str, target: str) -> bool:
    if target in ("", source):  # the package itself contains only the version
        return True
    if target in FORBIDDEN.get(source, set()):
        return False
    above, below = FLOOR_OF[source], FLOOR_OF[target]
    return below < above or (below == above and (above in PURE or target in SEAMS))


def none(package: str, is_wrong: Callable[[Import], bool]) -> None:
    """Check that no import of a package is wrong."""
    wrong = [str(found) for found in all_imports(package) if is_wrong(found)]
    assert not wrong, "\n".join(wrong)


def test_every_room_is_on_a_floor() -> None:
    unknown = {module.room for module in ORCHESTRATOR.values()} - set(FLOOR_OF) - {""}
    assert not unknown, f"put them on a floor, here and in CONTRIBUTING.md: {sorted(unknown)}"


def test_imports_go_down() -> None:
    def is_wrong(found: Import) -> bool:
        source, target = found.source.room, room_of(found.target)
        return ours(found) and source != "" and not floors_allow(source, target)

    none("orchestrator", is_wrong)


@pytest.mark.parametrize(
    ("inside", "depth"),
    [("orchestrator", 9), ("orchestrator", 2), ("orchestrator.node", 3)],
    ids=["modules", "rooms", "folders of node"],
)
def test_there_are_no_import_cycles(inside: str, depth: int) -> None:
    graph: dict[str, set[str]] = {}
    for found in all_imports("orchestrator"):
        if found.target in ORCHESTRATOR and all(
            under(name, inside) and name != inside for name in (found.source.name, found.target)
        ):
            source, target = (".".join(name.split(".")[:depth]) for name in (found.source.name, found.target))
            if source != target:
                graph.setdefault(source, set()).add(target)
    assert len(graph) > 4
    while free := {name for name, targets in graph.items() if not targets & set(graph)}:
        for name in free:
            del graph[name]
    # The remaining modules are on or above a cycle; following any edge finds one.
    circle: list[str] = []
    name = min(graph, default="")
    while name and name not in circle:
        circle.append(name)
        name = min(graph[name] & set(graph))
    assert not circle, " -> ".join([*circle[circle.index(name) :], name])


@pytest.mark.parametrize(
    ("program", "apart"), [("orchestrator", "node"), ("orchestrator/node", ""), ("worker_entry", "")]
)
def test_no_class_name_has_two_meanings(program: str, apart: str) -> None:
    """In each of the three programs; a name with an underscore is private to its module."""
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / program).rglob("*.py")):
        if not apart or not path.is_relative_to(ROOT / program / apart):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert len(places) > 10
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_node_imports_only_the_standard_library() -> None:
    """It becomes the package `orchestrate_node` on hosts with nothing but Python."""

    def is_wrong(found: Import) -> bool:
        if found.relative:
            allowed = under(found.target, "orchestrator.node")
        else:
            allowed = found.target.partition(".")[0] in {*sys.stdlib_module_names, *OF_NODES}
        return found.source.room == "node" and not allowed

    none("orchestrator", is_wrong)


# Rooms that decide: they get time, randomness, and waits from `clock`, so that they can be simulated.
DECIDES = ("orchestrator.phases", "orchestrator.fleet", "orchestrator.run", "orchestrator.store.bus")
_SEAM = re.compile(
    r"\b(?:time\.(?:monotonic|time|time_ns|monotonic_ns|perf_counter|sleep)|random\.\w+|select\.\w+"
    r"|datetime\.now)\b|threading\.(?:Thread|Timer)\("
)


def test_time_randomness_and_threads_come_through_the_clock() -> None:
    rooms = [module for module in ORCHESTRATOR.values() if under(module.name, *DECIDES)]
    assert len(rooms) > 20
    wrong = [
        f"{module.name}:{node.lineno}: {call}"
        for module in rooms
        for node in ast.walk(ast.parse(module.path.read_bytes()))
        if isinstance(node, ast.Attribute | ast.Call) and _SEAM.match(call := ast.unparse(node))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", sorted(DOORS))
def test_each_third_party_package_is_imported_in_one_place(package: str) -> None:
    doors = DOORS[package]
    none("orchestrator", lambda found: under(found.target, package) and not under(found.source.name, *doors))


def test_worker_entry_is_independent() -> None:
    none("worker_entry", ours)


def test_imported_packages_are_declared() -> None:
    declared = {
        requirement.partition(">")[0].strip().replace("-", "_").replace("pyyaml", "yaml")
        for requirement in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    }
    known = {*sys.stdlib_module_names, *declared, *OF_NODES}
    none("orchestrator", lambda found: not ours(found) and found.target.partition(".")[0] not in known)


def test_no_type_is_first_decoded_by_two_threads_at_once() -> None:
    """Values are decoded under `READING`, or by a decoder that is created at import."""
    bare, locked = [], 0
    for module in ORCHESTRATOR.values():
        tree = ast.parse(module.path.read_bytes())
        held = {
            inner
            for block in ast.walk(tree)
            if isinstance(block, ast.With)
            and any(ast.unparse(item.context_expr) == "READING" for item in block.items)
            for inner in ast.walk(block)
        }
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in (
                "msgspec.convert",
                "msgspec.json.decode",
            ):
                kinds = [*call.args[1:], *(word.value for word in call.keywords if word.arg == "type")]
                if any(isinstance(kind, ast.Name) for kind in kinds):  # dict[str, Any] has no fields
                    locked += call in held
                    bare += [] if call in held else [f"{module.name}:{call.lineno}"]
    assert locked > 4
    assert not bare
