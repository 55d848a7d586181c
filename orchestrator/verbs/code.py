"""The code that a launch sends, and the program in it, as the checks before a launch need them."""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from orchestrator.errors import UsageError
from orchestrator.model import Inventory
from orchestrator.node.base.paths import filesystem, is_remote
from orchestrator.plainfile import at_home, write_atomically
from orchestrator.program import invocation, notebook
from orchestrator.program.refusals import Code
from orchestrator.requests import LaunchRequest
from orchestrator.store import runs_root
from orchestrator.text import count
from orchestrator.value import Value

if TYPE_CHECKING:
    from orchestrator.sync.contents import CodeSource, Contents
    from orchestrator.sync.listing import CodeRoot

_ROWS = 30  # lines of a list
_LONGEST = 2 << 20  # bytes of a source file that is read


def project(inventory: Inventory, wish: str | None) -> CodeSource:
    """Return the code of the current folder's project; raise UsageError if it is not a project."""
    from orchestrator.sync.contents import CodeSource
    from orchestrator.sync.listing import find_root, list_files

    root = find_root(Path.cwd(), wish or inventory.job.code, runs_root().parent)
    # orchestrate's own folders are not part of the code.
    own = [runs_root().parent, *(at_home(host.workdir) for host in inventory.hosts if host.is_local)]
    return CodeSource(root, list_files(root.path, inventory.job.ignore, own))


class Sent(Value):
    """The code as a dry run shows it."""

    root: CodeRoot
    tree: Contents

    def as_json(self) -> dict[str, Any]:
        return {
            "root": str(self.root.path),
            "cwd": self.root.cwd,
            "bytes": self.tree.size,
            "files": [
                {"path": row[0], "bytes": row[2] if len(row) == 4 else 0} for row in self.tree.manifest.rows
            ],
            "left_out": dict(self.tree.left_out),
        }

    def as_text(self) -> Iterator[str]:
        from orchestrator.sync import private
        from orchestrator.text import count, plain, size

        why = " (the top of the git repository)" if self.root.from_git and self.root.cwd else ""
        yield ""
        yield plain(f"code: {self.root.path}{why}: {count(self.tree.files, 'file')}, {size(self.tree.size)}")
        if self.root.cwd:
            yield plain(f"  the tasks run in {self.root.cwd}/; --code . sends only that folder")
        rows = private.folders(self.tree.manifest)
        for path, many, files in rows[:_ROWS]:
            inside = f"  {count(files, 'file')}" if path.endswith("/") else ""
            yield plain(f"  {size(many):>8}  {path}{inside}")
        if len(rows) > _ROWS:
            rest = sum(many for _, many, _ in rows[_ROWS:])
            yield f"  {size(rest):>8}  in {len(rows) - _ROWS} more; --json lists every file"
        for reason, paths in private.by_reason(self.tree.left_out):
            yield plain(f"  not sent ({reason}): {', '.join(paths)}")
        for path in list(self.tree.left_out)[:1]:
            yield plain(f"  {private.how_to_send(path)}")
        listed = set(private.remarks(self.tree.left_out))
        yield from (plain(f"note: {note}") for note in self.tree.notes if note not in listed)


def with_scripts(request: LaunchRequest) -> tuple[LaunchRequest, tuple[str, ...]]:
    """Return the launch with its notebooks converted to scripts, and notes; raise UsageError."""
    given = dict.fromkeys([*(host.command for host in request.inventory.hosts), request.command])
    scripts = {command: of_notebook(command, Path.cwd()) for command in given}
    hosts = tuple(replace(host, command=scripts[host.command][0]) for host in request.inventory.hosts)
    notes = tuple(note for _, remarks in scripts.values() for note in remarks)
    inventory, command = replace(request.inventory, hosts=hosts), scripts[request.command][0]
    return replace(request, inventory=inventory, command=command), notes


def of_notebook(command: tuple[str, ...], here: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the command with `x.ipynb.py`, generated from its `x.ipynb`, and notes; raise UsageError."""
    name = invocation.program(command) or ""
    path = here / os.path.expanduser(name)  # noqa: PTH111
    if not name.endswith(".ipynb") or not path.is_file():
        return command, ()
    script = path.with_name(f"{path.name}.py")  # imports cannot find it: `keras.py` would hide the package
    try:
        text, left_out = notebook.convert(path.read_bytes(), path.name)
        mark = notebook.MARK.format(name=path.name)
        if script.exists() and not script.read_text(errors="replace").startswith(mark):
            what, why = f"{name} becomes {script.name}, which already exists", "orchestrate did not write it"
            raise UsageError(what, why=why, hint=f"launch {shlex.quote(name + '.py')}, or rename one of them")
        write_atomically(script, text.encode("utf-8", "surrogateescape"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{name} cannot be converted to a script", why=str(error)) from None
    lines = f", without {count(len(left_out), 'line')} that only IPython can run: " if left_out else ""
    note = (
        f"{name} is launched as {script.name}{lines}{'; '.join(' '.join(line.split()) for line in left_out)}"
    )
    return tuple(f"{word}.py" if word == name else word for word in command), (note,)


def look(inventory: Inventory, project: CodeSource | None) -> Code:
    """Return the code as the checks see it; `project` is None for worker_entry.

    Paths are relative to the folder in which the tasks will run: the current one, or its equivalent in a copy
    of the code.
    """
    copied = project is not None and project.state is not None
    here = project.root.path / project.root.cwd if project is not None and copied else Path.cwd()
    local = all(host.is_local for host in inventory.hosts)
    cwd = "" if project is None else project.root.cwd
    paths = () if project is None else project.listing.paths
    links = {} if project is None else _leaving(project)
    return Code(
        root=str(here),
        sent=frozenset(posixpath.relpath(path, cwd) for path in paths) if cwd else frozenset(paths),
        read=lambda path: _bytes(here / path),
        exists=lambda path: os.path.exists(here / os.path.expanduser(path)),  # noqa: PTH110, PTH111 - Path raises
        everywhere=lambda path: local or _shared(path),
        real=os.path.realpath,
        executable=lambda path: not (here / path).is_file() or bool((here / path).stat().st_mode & 0o111),
        cwd=cwd,
        prepared=bool(inventory.job.setup),
        links=links,
    )


def _leaving(project: CodeSource) -> dict[str, str]:
    """Return the targets of links that lead out of the code, each with its link."""
    top, leading = str(project.root.path), dict[str, str]()
    for path, target in project.listing.links.items():
        there = os.path.normpath(os.path.join(top, os.path.dirname(path), target))  # noqa: PTH118, PTH120
        if target.startswith("/") or not Path(there).is_relative_to(top):
            leading[there] = f"the link {path}"
    return leading


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.is_file() and path.stat().st_size <= _LONGEST else None
    except OSError:
        return None


def _shared(path: str) -> bool:
    """Return True if a path is on a network file system."""
    try:
        return is_remote(filesystem(os.path.expanduser(path)))  # noqa: PTH111
    except OSError:
        return False
