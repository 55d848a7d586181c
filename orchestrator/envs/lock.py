"""From the [env] table to a lock: every package with its version, one for all hosts, kept for later ones."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from orchestrator.envs import uv
from orchestrator.envs.hashes import bare, hashes_in, unbound, with_hashes
from orchestrator.errors import UsageError
from orchestrator.model import Environment
from orchestrator.plainfile import read_plain

OLDEST = "3.11"  # the Python that a lock is good for, and newer ones, where [env] names no version
_LATER, _EARLIER = range(11, 40), range(6, 11)  # minor versions, from OLDEST on and before it
_MOST = 16 << 20  # bytes of a requirements file or a lock
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_INCLUDE = re.compile(
    r"^\s*(?:-r|--requirement|-c|--constraint)[ \t=]\s*(\S.*?)\s*?(?:\s#.*)?$", re.MULTILINE
)
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_NEVER = "tensorflow; sys_platform == 'never'"
_CPU = re.compile(r"^\s*tensorflow[-_]cpu\b", re.MULTILINE | re.IGNORECASE)
_FULL = re.compile(r"^\s*tensorflow(?![-_.\w]).*$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Lock:
    """Requirement lines with exact versions and markers; its environments have its name."""

    text: str
    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """The packages that Linux machines may need."""
        lines = (Requirement(bare(line)) for line in requirement_lines(self.text))
        linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
        return tuple(one.name for one in lines if one.marker is None or one.marker.evaluate(linux))


def named(text: str, environment: Environment) -> Lock:
    """The lock of an [env] table whose text is known."""
    return Lock(text, name_of(text, environment.python))


def name_of(text: str, python: str | None) -> str:
    """The name of a lock, which says what is in it: a kept one that has another name is damaged."""
    key = "\n".join((python or "", *requirement_lines(text)))
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def resolve(environment: Environment) -> Lock:
    """A new lock, of the newest versions that fit.

    Raise UsageError for requirements that cannot go to other machines, ClusterError when uv cannot resolve.
    """
    text = _resolve(environment)
    for line in requirement_lines(text):
        _check(line)
    lock = named(text, environment)
    if not lock.names:
        raise UsageError(
            "[env] asks for no package",
            why=f"{environment.requirements or 'packages'} names none that a Linux machine needs",
            hint="name what the program needs there; [env] alone brings TensorFlow",
        )
    return lock


def with_python(environment: Environment) -> Environment:
    """The table with the Pythons that its project allows, where it names none itself."""
    if environment.python is not None or environment.requirements is None:
        return environment
    allowed = _allowed(Path(environment.requirements))
    if allowed is None or all(_fits(allowed, one) for one in _LATER):
        return environment
    if any(_fits(allowed, one) for one in _LATER) and any(_fits(allowed, one) for one in _EARLIER):
        allowed &= SpecifierSet(f">={OLDEST}")
    return dataclasses.replace(environment, python=str(allowed))


def recipe_digest(environment: Environment) -> str:
    """What changes when the table does, or a file that it names; raise UsageError for a missing file."""
    parts = [environment.python or "", environment.index or "", *environment.packages, *environment.extras]
    if environment.requirements is not None:
        contents = list(_contents(Path(environment.requirements), set()))
        parts += [environment.requirements, *contents]
        if hashes_in(contents):  # locks that were made before all were checked lack some
            parts.append("all hashes")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def requirement_lines(text: str) -> Iterator[str]:
    """The lines of a lock without comments; hashes stand behind a package's version and marker."""
    for line in text.split("\n"):
        content = line.partition(" #")[0].strip()
        if content and not content.startswith("#"):
            yield content


def _contents(path: Path, known: set[Path]) -> Iterator[str]:
    """A requirements file and those that it includes."""
    if path in known:
        return
    known.add(path)
    try:
        text = read_plain(path, _MOST, follow=True).decode()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read {path}, the `requirements` of [env]",
            why=getattr(error, "strerror", None) or str(error),
            hint="save it as UTF-8"
            if isinstance(error, UnicodeError)
            else "name a requirements file, a lock or a pyproject.toml, relative to hosts.toml",
        ) from error
    yield text
    for name in _included(text):
        yield from _contents(path.parent / name, known)


def _included(text: str) -> Iterator[str]:
    """The files that a requirements file includes, written as uv reads them; a URL is left to it."""
    for match in _INCLUDE.finditer(text):
        word = match[1].strip()
        word = word[1:-1] if word[0] == word[-1] and word[0] in "'\"" else word.replace("\\ ", " ")
        word = _VARIABLE.sub(lambda one: os.environ.get(one[1], one[0]), word)
        if not re.match(r"https?://", word):
            yield word.removeprefix("file://")


def _resolve(environment: Environment) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "packages.in").write_text(
            "".join(f"{line}\n" for line in environment.packages), encoding="utf-8"
        )
        sources, texts = [str(folder / "packages.in")], list(environment.packages)
        extras = [word for extra in environment.extras for word in ("--extra", extra)]
        if environment.requirements is not None:
            path = Path(environment.requirements)
            texts += _wanted(path)
            if path.name.startswith("pylock.") and path.suffix == ".toml":
                raise UsageError(
                    f"[env] cannot be made of {path}",
                    why="`uv pip compile` does not read a pylock.toml (PEP 751)",
                    hint="name the uv.lock, pyproject.toml or requirements file that it was made from",
                )
            if path.name == "uv.lock":
                export = ["export", "--frozen", "--no-emit-project", "--no-header", "--no-annotate"]
                text = uv.run(f"read {path}", [*export, *extras, "--project", str(path.parent)])
                if not environment.packages:
                    return with_hashes(text, {})
                texts, extras, path = [*environment.packages, text], [], folder / "locked.txt"
                path.write_text(text, encoding="utf-8")
            sources.append(str(path))
        if loose := unbound(texts):
            raise UsageError(
                f"[env] cannot check the hash of {loose[0]!r}",
                why="it is the hash of one file, and no one version is named whose file that is",
                hint=f"write `{Requirement(loose[0]).name}==VERSION`, as pip-compile does, or no hash",
            )
        arguments = ["pip", "compile", "--quiet", "--universal", "--no-header", "--no-annotate"]
        arguments += ["--no-emit-index-url", "--python-version", _minimum(environment), *extras]
        if environment.index is not None:
            arguments += ["--default-index", environment.index]
        if overrides := overrides_of("\n".join(texts)):
            (folder / "overrides.txt").write_text("\n".join(overrides), encoding="utf-8")
            arguments += ["--overrides", str(folder / "overrides.txt")]
        return with_hashes(uv.run("resolve the packages of [env]", [*arguments, *sources]), hashes_in(texts))


def overrides_of(listing: str) -> list[str]:
    """What replaces other packages' wish for tensorflow where tensorflow-cpu is listed.

    tf-keras, for one, would bring the full one beside the lighter one, and the two overwrite each other.
    """
    if not _CPU.search(listing):
        return []
    return [line.strip() for line in _FULL.findall(listing)] or [_NEVER]


def _wanted(path: Path) -> list[str]:
    contents = list(_contents(path, set()))
    if path.name != "pyproject.toml":
        return contents
    try:
        project = tomllib.loads(contents[0]).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"cannot read {path}", why=str(error)) from error
    dependencies = project.get("dependencies", []) if isinstance(project, dict) else []
    return [str(one) for one in dependencies]


def _minimum(environment: Environment) -> str:
    wanted = environment.python or ""
    if _VERSION.fullmatch(wanted):
        return wanted
    try:
        allowed = SpecifierSet(wanted)
    except InvalidSpecifier:  # a program
        return OLDEST
    return next((f"3.{one}" for one in (*_LATER, *_EARLIER[::-1]) if _fits(allowed, one)), OLDEST)


def _allowed(path: Path) -> SpecifierSet | None:
    """The `requires-python` of a pyproject.toml or uv.lock; None where there is none that can be read."""
    try:
        if path.name not in {"pyproject.toml", "uv.lock"}:
            return None
        told = tomllib.loads(read_plain(path, _MOST, follow=True).decode())
        place = told if path.name == "uv.lock" else told["project"]
        return SpecifierSet(place["requires-python"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None  # what is wrong with the file is said when its packages are read


def _fits(allowed: SpecifierSet, minor: int) -> bool:
    """Whether some release of Python 3.MINOR is allowed."""
    return any(allowed.contains(f"3.{minor}{patch}") for patch in ("", ".99"))


def _check(line: str) -> None:
    """Raise UsageError for a line that means something on this machine alone."""
    try:
        local = (Requirement(bare(line)).url or "").startswith("file:")
    except InvalidRequirement:
        local = True
    if local:
        raise UsageError(
            f"[env] asks for {line.split(' @ ', maxsplit=1)[0]!r}, which is on this machine alone",
            why=f"the hosts cannot install {line!r}",
            hint="leave it out: the code that you launch is sent anyway; or name a release of it",
        )
