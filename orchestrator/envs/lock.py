"""From the [env] table to a lock: every package with its version, one for all hosts."""

import contextlib
import hashlib
import re
import shlex
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from orchestrator.envs import uv
from orchestrator.envs.platforms import EXACT, LINUX, allowed_by, allows
from orchestrator.errors import ClusterError, UsageError
from orchestrator.model import Environment
from orchestrator.plainfile import read_plain
from orchestrator.text import count
from orchestrator.value import Value

OLDEST = "3.11"  # the oldest Python that a lock supports if [env] names no version
HASH = " --hash="
_LATER = range(11, 40)  # minor versions, from OLDEST on
_MOST = 16 << 20  # bytes of a requirements file or a lock
_INCLUDE = re.compile(r"^\s*(?:-r|--requirement|-c|--constraint)[ \t=]\s*(\S+)", re.MULTILINE)
_NAMED = re.compile(r"[\"']([^\"'\n]+\.(?:txt|in))[\"']")
_INDEX = re.compile(r"^\s*((?:-i|-f|--(?:extra-)?index-url|--find-links)[ =]\s*\S+)", re.MULTILINE)
_CPU = re.compile(r"^\s*tensorflow[-_]cpu\b", re.MULTILINE | re.IGNORECASE)
_FULL = re.compile(r"^\s*tensorflow(?![-_.\w]).*$", re.MULTILINE | re.IGNORECASE)


class Lock(Value):
    """Requirement lines with exact versions and markers; its environments are named after it."""

    text: str
    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """Return the packages that Linux machines may need."""
        packages = (Requirement(bare(line)) for line in requirement_lines(self.text))
        return tuple(
            package.name for package in packages if package.marker is None or package.marker.evaluate(LINUX)
        )


def named(text: str, environment: Environment) -> Lock:
    """Return the lock of an [env] table whose text is known."""
    return Lock(text, name_of(text, environment.python))


def name_of(text: str, python: str | None) -> str:
    """Return the name of a lock, derived from its content: a stored one with another name is damaged."""
    key = "\n".join((python or "", *requirement_lines(text)))
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def resolve(environment: Environment) -> Lock:
    """Create a lock with the newest versions that fit.

    Raise UsageError for requirements that cannot go to other machines, ClusterError if uv cannot resolve.
    """
    try:
        text = _resolve(environment)
    except ClusterError as error:
        raise _explained(environment, error.why) or error from None
    for line in requirement_lines(text):
        try:
            is_local = (Requirement(bare(line)).url or "").startswith("file:")
        except InvalidRequirement:
            is_local = True
        if is_local:
            raise _explained(environment, line) or UsageError(
                f"[env] asks for {line.split(' @ ', maxsplit=1)[0]!r}, which is only on this machine",
                why=f"the hosts cannot install {line!r}",
                hint="leave it out: the code that you launch is sent anyway; or name a release of it",
            )
    _check_index(environment, text)
    return named(text, environment)


def _check_index(environment: Environment, text: str) -> None:
    """Raise UsageError if some packages are only in an index that the requirements file names."""
    path = Path(environment.requirements or "")
    named_there = _INDEX.search("\n".join(_contents(path, set()))) if environment.requirements else None
    if named_there is None:
        return
    try:
        uv.compiled(text, *universal(environment.python), index=environment.index)
    except ClusterError as error:
        raise UsageError(
            f"{path} names an index of its own, {named_there[1]!r}",
            why=f"the hosts use only the index of [env]: {error.why}",
            hint="remove that line, and `+cu121` of versions: the builds of the package index have CUDA, "
            "too; or set `index` under [env] to an index that has all packages",
        ) from None


# --- requirements written by other tools that no host can install ---

_LIST = "`python -m pip list --format=freeze --exclude-editable > requirements.txt`"
_CONDA = (
    f"activate that environment, {_LIST}, and name this file; or remove [env], and set `python` of the hosts"
    " to that of their conda environment"
)


class _Kind(Value):
    line: str  # a pattern whose group is the requirement
    why: str
    hint: str
    sure: bool = True  # False: only if the resolver complains about it


_KINDS = (
    _Kind(r"^(dependencies):[ \t]*$", "it is a conda environment, whose packages pip cannot install", _CONDA),
    _Kind(r"^([\w.-]+=[\w.!+]+=\w+)[ \t]*$", "`conda list --export` wrote it, for conda only", _CONDA),
    _Kind(
        r"^[ \t]*([\w.,\[\]-]+ *@ *file:\S*)",
        "`pip freeze` wrote where it was installed from, a path of one machine, in place of its version",
        f"{_LIST} in that environment writes versions",
    ),
    _Kind(
        r"^[ \t]*([\w.,\[\]-]+ *===? *[\w.!]+\+[\w.]+)",
        "the package index has no such build; PyTorch's own index does",
        "`sed -E -i 's/(==[^ +]+)\\+[A-Za-z0-9.]+/\\1/' {path}` leaves the builds of the package index, "
        "which have CUDA, too; or set `index` under [env] to an index that has all packages",
        sure=False,
    ),
    _Kind(
        r"^[ \t]*((?:-e|--editable)[ =]+(?!\w+\+)\S+)",
        "it is a folder of this machine, which the hosts do not have",
        "leave it out: the code that you launch is sent anyway (set PYTHONPATH in `env` under [job] to its "
        'folder, such as "src"); `requirements = "pyproject.toml"` installs what it depends on',
    ),
)


def _explained(environment: Environment, reason: str) -> UsageError | None:
    """Explain why requirements cannot be resolved or installed on hosts; None for other reasons."""
    path = environment.requirements
    text = "\n".join((*environment.packages, *(_contents(Path(path), set()) if path else ())))
    for kind in _KINDS:
        matches = re.findall(kind.line, text, re.MULTILINE)
        if matches and (kind.sure or any(line.partition("+")[2] in reason for line in matches)):
            others = f" and {count(len(matches) - 1, 'more line')} of that kind" if matches[1:] else ""
            hint = kind.hint.format(path=shlex.quote(path or "hosts.toml"))
            return UsageError(f"{path or '[env]'} asks for {matches[0]!r}{others}", why=kind.why, hint=hint)
    return None


def with_python(environment: Environment) -> Environment:
    """Return the table with the Pythons that its project allows, if it names none itself."""
    path = Path(environment.requirements or "")
    if environment.python is not None or path.name not in {"pyproject.toml", "uv.lock"}:
        return environment
    try:
        table = tomllib.loads(read_plain(path, _MOST, follow=True).decode())
        allowed = SpecifierSet((table if path.name == "uv.lock" else table["project"])["requires-python"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return environment  # errors in the file are reported when its packages are read
    return replace(environment, python=portable(allowed))


def portable(allowed: SpecifierSet) -> str:
    """Return the allowed Pythons, without those older than current packages need."""
    newer = any(allows(allowed, minor) for minor in _LATER)
    return str(allowed & SpecifierSet(f">={OLDEST}") if newer else allowed)


def recipe_digest(environment: Environment) -> str:
    """Return a digest of the table and the files that it names; raise UsageError for a missing file."""
    parts = [environment.python or "", environment.index or "", *environment.packages, *environment.extras]
    if environment.requirements is not None:
        parts += [environment.requirements, *_contents(Path(environment.requirements), set())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def requirement_lines(text: str) -> Iterator[str]:
    """Return the lines of a requirements file without comments and trailing hashes."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        if content := " ".join(re.sub(r"(^|\s)#.*$", "", line).split()):
            yield content


def bare(line: str) -> str:
    """Return a line of a lock without its hashes."""
    return line.partition(HASH)[0]


def _contents(path: Path, done: set[Path]) -> Iterator[str]:
    """Return the text of a requirements file and those that it includes by a plain name."""
    if path in done:
        return
    done.add(path)
    try:
        text = read_plain(path, _MOST, follow=True).decode("utf-8-sig")
        if "\0" in text:
            raise UnicodeError("it has NUL characters, as UTF-16 has")
    except (OSError, ValueError) as error:
        convert = f"`iconv -f UTF-16 -t UTF-8 {shlex.quote(str(path))} > utf8.txt`"
        raise UsageError(
            f"cannot read {path}, the `requirements` of [env]",
            why=getattr(error, "strerror", None) or str(error),
            hint="name a requirements file, a lock or a pyproject.toml in UTF-8, relative to hosts.toml"
            + f"; PowerShell's `>` writes UTF-16: {convert} makes UTF-8 of it"
            * isinstance(error, UnicodeError),
        ) from error
    yield text
    names = _INCLUDE.findall(text)
    if path.name == "pyproject.toml" and ("dynamic" in text or "[project]" not in text):
        names = [*_NAMED.findall(text), "setup.py", "setup.cfg"]  # which may hold its dependencies
    for name in names:
        if (other := path.parent / name).is_file():  # uv handles what else it can read
            yield from _contents(other, done)


def _resolve(environment: Environment) -> str:
    extras = [word for extra in environment.extras for word in ("--extra", extra)]
    with tempfile.TemporaryDirectory() as name:
        listing = Path(name) / "packages.in"
        listing.write_text("".join(f"{line}\n" for line in environment.packages), encoding="utf-8")
        sources, contents = [listing], ["\n".join(environment.packages)]
        if environment.requirements is not None:
            path = Path(environment.requirements)
            contents += _contents(path, set())
            with contextlib.suppress(ValueError, LookupError, TypeError):  # uv reports what is wrong with it
                if path.name == "pyproject.toml":
                    contents += tomllib.loads(contents[1])["project"]["dependencies"]
            if path.name == "uv.lock":
                export = ["export", "--frozen", "--no-emit-project", "--no-header", "--no-annotate"]
                text = uv.run(f"read {path}", [*export, *extras, "--project", str(path.parent)])
                if not environment.packages:
                    return text
                contents, extras, path = [contents[0], text], [], Path(name) / "locked.txt"
                path.write_text(text, encoding="utf-8")
            sources.append(path)
        arguments = ["pip", "compile", "--quiet", *universal(environment.python), "--no-header"]
        arguments += ["--no-annotate", "--generate-hashes", "--no-emit-index-url"]
        if sources[-1].name == "pyproject.toml":  # uv remembers what its build listed, from other files too
            arguments.append("--refresh")
        if environment.index is not None:
            arguments += ["--default-index", environment.index]
        if overrides := overrides_of("\n".join(contents)):
            (Path(name) / "overrides.txt").write_text("\n".join(overrides), encoding="utf-8")
            arguments += ["--overrides", str(Path(name) / "overrides.txt")]
        return uv.run("resolve the packages of [env]", [*arguments, *extras, *map(str, sources)])


def overrides_of(listing: str) -> list[str]:
    """Return overrides for packages that require tensorflow if tensorflow-cpu is listed.

    tf-keras, for example, would install the full one next to the lighter one, and the two overwrite each
    other.
    """
    if not _CPU.search(listing):
        return []
    return [line.strip() for line in _FULL.findall(listing)] or ["tensorflow; sys_platform == 'never'"]


def universal(python: str | None) -> tuple[str, ...]:
    """Return uv's options to resolve for all Pythons that [env] allows: its default is the controller's."""
    oldest = python or OLDEST
    if not EXACT.fullmatch(oldest):
        allowed = allowed_by(oldest)  # None for a program
        minors = (f"3.{minor}" for minor in range(6, 40) if allowed is not None and allows(allowed, minor))
        oldest = next(minors, OLDEST)
    return "--universal", "--python-version", oldest
