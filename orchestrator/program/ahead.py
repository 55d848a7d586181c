"""Determine what a program imports first, so that it can be imported before the program runs. Pure.

The imports happen in the program's order, with the variables that it sets to literal values before them.
Nothing is imported ahead of a statement that could observe the difference.
"""

import ast
import re
import sys
from collections.abc import Iterable, Sequence

from orchestrator.model import EarlyImports, Preset
from orchestrator.program import invocation
from orchestrator.program.sources import SourceFile, dotted, text

_FRAMEWORKS = frozenset(
    ("tensorflow", "keras", "tf_keras", "torch", "jax", "flax", "optax", "torchvision", "tensorflow_datasets")
)
# Packages whose import only defines names.
_PLAIN = frozenset(
    ("numpy", "scipy", "pandas", "matplotlib", "sklearn", "PIL", "h5py", "tqdm", "absl", "yaml")
)
_TALKING = frozenset(("this", "antigravity", "__main__", "site", "sitecustomize", "readline", "faulthandler"))
_CALLS = re.compile(
    r"(?:(?:pathlib\.)?Path|os\.path\.\w+|os\.environ\.get|os\.getenv|int|float|str|bool|len|tuple|list|dict|set"
    r"|frozenset|range|time\.(?:time|perf_counter|monotonic)|logging\.getLogger|argparse\.ArgumentParser"
    r"|collections\.namedtuple|namedtuple|re\.compile|(?:typing\.)?TypeVar)$"
)
_METHODS = frozenset(("resolve", "absolute", "joinpath", "lower", "upper", "strip", "split", "format", "get"))
# Variables that imports read. TF_CONFIG is read later.
_READ = re.compile(
    r"(?!TF_CONFIG$)(?:PYTHON|LD_|LC_|LANG|OMP_|MKL_|KMP_|OPENBLAS|MALLOC|TF_|XLA|CUDA|NVIDIA|KERAS|TORCH|PYTORCH"
    r"|JAX|NCCL|GRPC|HDF5|MPL|PATH$|HOME$)"
)


BUNDLED = EarlyImports(
    ("tensorflow", "tensorflow/keras/layers"),
    (
        Preset("TF_USE_LEGACY_KERAS", "1", default=True),
        Preset("TF_CPP_MIN_LOG_LEVEL", "2", default=True),
        Preset("grpc_proxy", "", default=True),
    ),
)


def find(command: Sequence[str], sources: Sequence[SourceFile]) -> EarlyImports:
    """Return what can be imported ahead for a command whose program and modules are `sources`."""
    words = tuple(command)
    name = invocation.program(words) if words else None
    module = invocation.module_name(words) if words else None
    plain = words and (words[0].endswith(".py") or invocation.PYTHON.match(words[0].rpartition("/")[2]))
    if not plain or invocation.is_wrapped(words) or not sources or not (name or module):
        return EarlyImports(why="the command is not a Python program")
    walk = _Walk(
        {source.path: source for source in sources}, (name or "").removeprefix("./").rpartition("/")[0]
    )
    try:
        if module:
            walk.local(module, "")
        walk.file(sources[0].path)
        walk.why = f"{sources[0].path} imports no framework at its top"
    except _StopError as stop:
        walk.why = str(stop)
    if not _FRAMEWORKS & {module.partition(".")[0] for module in walk.imports}:
        return EarlyImports(why=walk.why)
    return EarlyImports(tuple(dict.fromkeys(walk.imports)), tuple(walk.preset), "")


class _StopError(Exception):
    """Imports must not be made ahead of this statement."""


class _Walk:
    """The statements that run before and between imports, in order."""

    def __init__(self, files: dict[str, SourceFile], beside: str) -> None:
        self.imports: list[str] = []
        self.preset: list[Preset] = []
        self.why = ""
        self._files = files
        self._beside = beside
        self._seen: set[str] = set()
        self._path = ""

    def file(self, path: str) -> None:
        if path in self._seen:
            return
        self._seen.add(path)
        above, self._path = self._path, path
        self._run(self._files[path].body)
        self._path = above

    def local(self, module: str, base: str) -> bool:
        """Evaluate a module next to the program, and the packages it is in; return False if there is none."""
        exists, parts = False, [part for part in module.split(".") if part]
        for length in range(1, len(parts) + 1):
            path = "/".join(filter(None, (base, *parts[:length])))
            for file in (f"{path}/__init__.py", f"{path}.py"):
                if file in self._files:
                    exists = True
                    self.file(file)
                    break
        return exists

    def _run(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Import(names=names):
                for alias in names:
                    self._import(alias.name, (), statement)
            case ast.ImportFrom(module=module, names=names, level=level):
                if level:
                    base = "/".join(self._path.split("/")[:-level])
                    for alias in names:
                        self.local(".".join(filter(None, (module, alias.name))), base)
                else:
                    self._import(module or "", [alias.name for alias in names], statement)
            case ast.FunctionDef(decorator_list=[]) | ast.AsyncFunctionDef(decorator_list=[]) | ast.Pass():
                pass
            case ast.ClassDef(decorator_list=[], body=body, bases=bases) if all(map(self._plain, bases)):
                self._run(body)
            case ast.If(test=test) if "TYPE_CHECKING" in ast.dump(test):
                pass
            case ast.If(test=test, body=body) if "__name__" in ast.dump(test):
                self._run(body)
            case ast.If(test=test, body=body, orelse=rest) if self._plain(test):
                self._must(
                    not any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(statement)),
                    statement,
                )
                self._run([*body, *rest])
            case ast.Try(body=body, orelse=rest):  # an import that fails ahead is useless
                self._run([*body, *rest])
            case ast.Assign(targets=[ast.Subscript(value=target, slice=key)], value=value) if self._is_env(
                target
            ):
                self._set(text(key), value, statement)
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=target, attr="setdefault"), args=[key, value])
            ) if self._is_env(target):
                self._set(text(key), value, statement, default=True)
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.Assign(targets=targets, value=value) if all(
                isinstance(t, ast.Name | ast.Tuple) for t in targets
            ):
                self._must(self._plain(value), statement)
            case ast.AnnAssign(target=ast.Name(), value=value):
                self._must(value is None or self._plain(value), statement)
            case _:
                self._must(False, statement)

    def _import(self, module: str, names: Sequence[str], statement: ast.stmt) -> None:
        top = module.partition(".")[0]
        own = [self.local(each, self._beside) for each in (module, *(f"{module}.{name}" for name in names))]
        if any(own):
            return
        if top in _FRAMEWORKS | _PLAIN:
            self.imports.append(module)
            self.imports += [f"{module}/{name}" for name in names if name != "*"]
            if top == "tensorflow" and "keras" in self._files[self._path].text:
                self.imports.append("tensorflow/keras/layers")
            return
        self._must(top in sys.stdlib_module_names and top not in _TALKING, statement)

    def _set(self, name: str | None, value: ast.expr, statement: ast.stmt, *, default: bool = False) -> None:
        written = text(value)
        if self.imports or name is None or written is None:
            self._must(name is not None and not _READ.match(name) and self._plain(value), statement)
        else:
            self.preset.append(Preset(name, written, default))

    @staticmethod
    def _is_env(node: ast.expr) -> bool:
        return dotted(node) in ("os.environ", "environ")

    def _plain(self, node: ast.expr) -> bool:
        """Return True for an expression that neither depends on an import nor has an effect."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                method = inner.func.attr if isinstance(inner.func, ast.Attribute) else ""
                if not _CALLS.match(dotted(inner.func)) and method not in _METHODS:
                    return False
            elif isinstance(inner, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
                return False
        return True

    def _must(self, fine: bool, statement: ast.stmt) -> None:
        if not fine:
            raise _StopError(f"line {statement.lineno} of {self._path} runs before its imports")
