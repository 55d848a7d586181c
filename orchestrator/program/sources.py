"""A Python program and the modules next to it that it imports, as syntax trees. Pure."""

import ast
import io
import re
import tokenize
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property

from orchestrator.program import invocation
from orchestrator.program.invocation import Read
from orchestrator.value import Value

MOST = 200  # files
SRC = "src/"  # where many projects keep their packages, which are on PYTHONPATH or installed
_IMPORT = re.compile(r"^\s*(?:import|from)\s+(\w+)", re.MULTILINE)
_BY_NAME = frozenset({"import_module", "__import__"})


def decoded(data: bytes) -> str:
    """Decode a text as Python reads it: in the encoding that its first lines declare, otherwise UTF-8."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, LookupError, ValueError):
        text = data.decode("utf-8", "replace")
    return io.StringIO(text, None).read().removeprefix("\ufeff")


def parsed(text: str | bytes, name: str = "<unknown>") -> ast.Module:
    """Parse a program without its own warnings, such as those of an invalid escape."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, name)


class SourceFile(Value, dict=True):
    """A file of a program; `path` is relative to where the tasks run."""

    path: str
    text: str

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Return every node of its syntax tree; none for a text that this Python cannot parse."""
        return tuple(ast.walk(self._tree))

    @cached_property
    def _tree(self) -> ast.Module:
        try:
            return parsed(self.text)
        except (MemoryError, RecursionError, SyntaxError, ValueError):
            return ast.Module([], [])

    @property
    def body(self) -> list[ast.stmt]:
        """Return the statements at the top of the file."""
        return self._tree.body

    @cached_property
    def statements(self) -> tuple[ast.stmt, ...]:
        """Return the top-level statements of the file, and those below `if __name__ == "__main__":`."""
        return tuple(
            inner
            for node in self._tree.body
            for inner in (
                node.body if isinstance(node, ast.If) and "__name__" in ast.dump(node.test) else [node]
            )
        )

    @cached_property
    def calls(self) -> tuple[ast.Call, ...]:
        return tuple(node for node in self.nodes if isinstance(node, ast.Call))

    @cached_property
    def dotted_imports(self) -> tuple[tuple[int, str], ...]:
        """Return what the file imports: the level of a relative import, otherwise 0, and the dotted name."""
        imported: list[tuple[int, str]] = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                imported += ((0, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                names = (f"{module}.{alias.name}" for alias in node.names if alias.name != "*")
                imported += ((node.level, name.strip(".")) for name in (module, *names) if name)
        return tuple(imported)

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """Return the dotted names that it imports from outside its own package, as far as it is Python."""
        return tuple(name for level, name in self.dotted_imports if not level)

    @cached_property
    def imports(self) -> tuple[str, ...]:
        """Return the names of packages and modules that it imports from outside its own package."""
        # The hosts may run a newer Python than this machine, whose syntax is valid.
        by_text = _IMPORT.findall(self.text) if len(self.nodes) == 1 else []
        called_for = (text(argument(call, 0, "")) for call in self.calls if called(call) in _BY_NAME)
        by_name = [module.split(".")[0] for module in called_for if module]
        return (*by_text, *by_name, *(name.split(".")[0] for name in self.modules))

    @cached_property
    def code(self) -> str:
        """Return a program without its comments and docstrings; other texts without what follows a `#`."""
        try:
            tree = parsed(self.text)
        except (MemoryError, RecursionError, SyntaxError, ValueError):
            return "\n".join(line.partition("#")[0] for line in self.text.split("\n"))
        for node in ast.walk(tree):
            if isinstance(body := getattr(node, "body", None), list):
                texts = [
                    statement
                    for statement in body
                    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                ]
                node.body = [statement for statement in body if statement not in texts] or [ast.Pass()]  # type: ignore[attr-defined]
        return ast.unparse(tree)

    @cached_property
    def _values(self) -> dict[str, list[ast.expr | None]]:
        """Return the values of each name; None if it is not bound by plain assignments."""
        bound: dict[str, list[ast.expr | None]] = {}
        plain: set[int] = set()
        for node in self.nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=name) as target], value=value):
                    plain.add(id(target))
                    bound.setdefault(name, []).append(value)
                case ast.Name(id=name, ctx=ast.Store()) if id(node) not in plain:
                    bound.setdefault(name, []).append(None)
                case ast.arg(arg=name):
                    bound.setdefault(name, []).append(None)
        return bound

    def value(self, node: ast.expr | None) -> ast.expr | None:
        """Return the expression behind a name that the file binds once; other expressions unchanged."""
        if not isinstance(node, ast.Name):
            return node
        values = self._values.get(node.id, [])
        return values[0] if len(values) == 1 else None

    def number(self, node: ast.expr | None, depth: int = 10) -> int | None:
        """Return an expression's whole number, as far as names and products show it."""
        match self.value(node):
            case ast.Constant(value=int(number)) if depth:
                return number
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if depth:
                first, second = self.number(left, depth - 1), self.number(right, depth - 1)
                return None if first is None or second is None else first * second
        return None


def dotted(node: ast.AST) -> str:
    """Return names and attributes as `tf.data.Dataset`; "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else ""


def called(call: ast.Call) -> str:
    """Return the name of what is called, without its module or object: `fit`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)


def text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    if len(call.args) > place and not any(isinstance(item, ast.Starred) for item in call.args):
        return call.args[place]
    return next((item.value for item in call.keywords if item.arg == name), None)


def read(command: Sequence[str], text_of: Read) -> tuple[SourceFile, ...]:
    """Read the program of a command, if it is Python or a shell runs it, and what it imports."""
    argv = tuple(command)
    own = scripts(text_of)
    shell = invocation.shell_text(argv, text_of) if argv else ""
    words = argv[1:] if invocation.is_wrapped(argv) and invocation.unwrapped(argv) == argv else ()
    words += tuple(invocation.shell_code(shell).split())
    programs = invocation.in_shell(shell) or tuple((word,) for word in words if word in own)
    roots = invocation.folders(shell)
    files: dict[str, SourceFile] = {}
    for started in programs or (argv,):
        module = (invocation.module_name(started) or own.get(started[0])) if started else None
        name = invocation.program(started)
        if name is not None:
            name = next((f"{root}{name}" for root in roots if text_of(f"{root}{name}") is not None), name)
        packages: list[str] = []  # the packages of a module, which are imported before it
        if module is not None:
            path = module.replace(".", "/")
            ends = (f"{root}{path}{end}" for root in (*roots, SRC) for end in (".py", "/__main__.py"))
            name = next((end for end in ends if text_of(end) is not None), None)
            parts = path.split("/")
            above = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
            packages = [f"{root}{package}/__init__.py" for root in (*roots, SRC) for package in above]
        if name is not None and name.endswith(".py"):
            for source in (file for start in (name, *packages) for file in closure(start, text_of)):
                files.setdefault(source.path, source)
    return tuple(files.values())


def scripts(text_of: Read) -> dict[str, str]:
    """Return the module that each command of the project itself runs, as pyproject.toml declares it."""
    try:
        project = tomllib.loads(text_of("pyproject.toml") or "")
        declared = project.get("project", {}).get("scripts") or project["tool"]["poetry"]["scripts"]
        return {name: str(value).partition(":")[0] for name, value in declared.items()}
    except (AttributeError, LookupError, TypeError, ValueError):
        return {}


def closure(path: str, text_of: Read) -> Iterator[SourceFile]:
    """Yield a program and what it imports from its folder or the root, each once."""
    waiting, visited, count = [path], {path}, 0
    while waiting and count < MOST:
        here = waiting.pop(0)
        content = text_of(here)
        if content is None:
            continue
        count += 1
        yield (source := SourceFile(here, content))
        for candidate in _imported(source, path.rpartition("/")[0]):
            if candidate not in visited:
                visited.add(candidate)
                waiting.append(candidate)


def _imported(source: SourceFile, beside: str) -> Iterator[str]:
    """Yield where the modules that a file imports may be; most of these files do not exist."""
    for level, name in source.dotted_imports:
        parts = name.split(".")
        for base in {"/".join(source.path.split("/")[:-level]) if level else beside, "", SRC[:-1]}:
            for length in range(1, len(parts) + 1):
                path = "/".join(filter(None, (base, *parts[:length])))
                yield f"{path}.py"
                yield f"{path}/__init__.py"
