"""The program that is to be launched, and the code around it, as the checks before a launch ask for them."""

from __future__ import annotations

import importlib.util
import os
import posixpath
import re
import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePosixPath

from orchestrator import findings
from orchestrator.findings import reads
from orchestrator.findings.reads import Reading
from orchestrator.findings.sourcefile import SourceFile
from orchestrator.launching import code
from orchestrator.model import Inventory
from orchestrator.node.base.paths import filesystem, is_remote
from orchestrator.program import invocation, paths, sources, texts
from orchestrator.program.project import Code
from orchestrator.sync.builtin import builtin_parser

_LIBRARY = re.compile(r"^library\(['\"]?([A-Za-z][A-Za-z0-9.]*)['\"]?\)", re.MULTILINE)
_LONGEST = 2 << 20  # bytes of a source that is read
_FIRST = 4096  # bytes that tell what a file is


def look(
    inventory: Inventory,
    project: code.Project | None,
    env: Collection[str] = (),
    here: Path | None = None,
) -> Code:
    """What the checks may ask; `project` is None for worker_entry, `env` are the variables of `--env`.

    Paths are relative to the current folder (`here`), where the tasks run.
    """
    job, here = inventory.job, here or Path.cwd()
    hosts = {name for host in inventory.hosts for name in host.env}
    local = all(host.is_local for host in inventory.hosts)
    return Code(
        root=str(here),
        sent=frozenset() if project is None else _sent(project),
        read=lambda path: _text(here / path),
        raw=lambda path: _bytes(here / path),
        head=lambda path: _head(here / path),
        exists=lambda path: os.path.exists(here / _own(path)),  # noqa: PTH110 - Path raises for a long word
        folder=lambda path: os.path.isdir(here / path),  # noqa: PTH112
        executable=lambda path: os.access(here / path, os.X_OK),
        installed=_installed,
        everywhere=lambda path: local or _shared(path),
        real=os.path.realpath,
        pythonpath="PYTHONPATH" in {*env, *job.env, *job.forward, *hosts} or bool(job.setup),
        prepared=bool(job.setup),
    )


def _sent(project: code.Project) -> frozenset[str]:
    return frozenset(posixpath.relpath(path, project.root.cwd or ".") for path in project.listing.paths)


def read(command: Sequence[str], around: Code) -> tuple[SourceFile, ...]:
    """The program, and the modules beside it that it imports, if it is Python or a shell runs it."""
    words = tuple(command)
    if not words:
        return ()
    shell = invocation.shell_text(words, around.read)
    within = invocation.in_shell(shell)
    if within:
        found = (source for one in within for source in read(one, around))
        every = tuple({source.path: source for source in found}.values())
        one_of_them = len(within) > 1 and invocation.branches(shell)
        return tuple(replace(one, surely=False) for one in every) if one_of_them else every
    name = invocation.program(words)
    module = invocation.module_name(words)
    if module is not None:
        path = module.replace(".", "/")
        name = next((one for one in (f"{path}.py", f"{path}/__main__.py") if one in around.sent), None)
    if name is None or not name.endswith(".py"):
        return ()
    known = dict(sources.closure(name, around.read))
    sure = sources.surely(name, known, module=module is not None) if name in known else frozenset()
    return tuple(
        SourceFile(path, text, imported=path != name, surely=path in sure) for path, text in known.items()
    )


def shell(command: Sequence[str], around: Code) -> SourceFile | None:
    """What a shell reads of it, where one does."""
    words = tuple(command)
    text = invocation.shell_text(words, around.read) if words else ""
    name = PurePosixPath(invocation.program(words) or "command")
    return SourceFile(str(name), text) if text else None


def readings(
    command: Sequence[str], around: Code, files: Sequence[SourceFile], names: Collection[str]
) -> tuple[Reading, ...]:
    """What stands in the program and is there on this machine; `names` are those of the job's environment."""
    given = {*names, *(word.partition("=")[0] for word in command if word.startswith("-"))}
    return tuple(one for one in reads.each(files, given) if around.exists(one.path))


def own_paths(command: Sequence[str], around: Code, found: Sequence[Reading]) -> dict[str, str]:
    """What only the hosts know whether they have: each path, with the line that reads it.

    It is "" for an argument of the command.
    """
    own = dict.fromkeys(paths.own(tuple(command), around), "")
    for one in found:
        ours = one.path.startswith(("/", "~/")) and not around.everywhere(one.path)
        if ours and not findings.is_silent(findings.PATH, one.line, one.source):
            own.setdefault(one.path, f"{one.source.path}, line {one.line}")
    return dict(islice(own.items(), paths.MOST))


def r_packages(command: Sequence[str], around: Code) -> tuple[str, ...]:
    """What an R script surely loads; nothing of one that installs what it needs."""
    name = invocation.program(tuple(command))
    text = around.read(name) if name is not None and name.endswith((".R", ".r")) else None
    if text is None or "install.packages" in text:
        return ()
    return tuple(dict.fromkeys(_LIBRARY.findall(text)))


def check_options(command: Sequence[str]) -> None:
    """Let worker_entry's own parser judge its options; a wrong one ends this program with status 2."""
    if command and command[0].startswith("-"):
        builtin_parser().parse_args(list(command))


def _text(path: Path) -> str | None:
    data = _bytes(path)
    if data is None:
        return None
    return texts.decoded(data)


def _bytes(path: Path) -> bytes | None:
    try:
        if not path.is_file() or path.stat().st_size > _LONGEST:
            return None
        return path.read_bytes()
    except OSError:
        return None


def _head(path: Path) -> bytes:
    try:
        if not path.is_file():  # whoever opens a FIFO waits for a writer
            return b""
        with path.open("rb") as file:
            return file.read(_FIRST)
    except OSError:
        return b""


def _installed(name: str) -> bool:
    if shutil.which(name) is not None:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _own(path: str) -> str:
    """With the home of whoever launches; as it is where nobody knows that (Path.expanduser raises then)."""
    return os.path.expanduser(path)  # noqa: PTH111


def _shared(path: str) -> bool:
    """Whether it lies on a file system that other machines have, too."""
    try:
        return is_remote(filesystem(_own(path)))
    except OSError:
        return False
