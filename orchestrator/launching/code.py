"""The code that a launch sends: its folder, and the list of a dry run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.model import Inventory
from orchestrator.store import runs_root

if TYPE_CHECKING:
    from orchestrator.phases.context import CodeSource
    from orchestrator.sync import Contents
    from orchestrator.sync.listing import CodeListing, CodeRoot

_ROWS = 30  # lines of a list


@dataclass(frozen=True)
class Project:
    """The user's code as it lies here; listed once, for the checks and for the keeper."""

    root: CodeRoot
    ignore: tuple[str, ...]
    own: tuple[Path, ...]
    listing: CodeListing

    def source(self) -> CodeSource:
        """Make what the keeper of a run reads."""
        from orchestrator.phases.context import CodeSource

        return CodeSource(self.root.path, self.ignore, self.own, self.listing)

    def sent(self) -> Sent:
        """Read the tree that would be sent."""
        from orchestrator.sync import read_tree

        return Sent(self.root, read_tree(self.root.path, self.ignore, self.own, listing=self.listing))


def project(inventory: Inventory, wish: str | None, here: Path | None = None) -> Project:
    """The code of somebody who stands `here`; raise UsageError for what is not a project."""
    from orchestrator.sync.listing import find_root, list_files, own_folders

    found = find_root(here or Path.cwd(), wish or inventory.job.code, runs_root().parent)
    ignore = inventory.job.ignore
    local = (host.workdir for host in inventory.hosts if host.is_local)
    own = own_folders(runs_root(), local)
    return Project(found, ignore, own, list_files(found.path, ignore, own))


@dataclass(frozen=True)
class Sent:
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
            yield plain(f"  the tasks run in {self.root.cwd}/; --code . sends that folder alone")
        rows = private.folders(self.tree.manifest)
        for path, many, files in rows[:_ROWS]:
            inside = f"  {count(files, 'file')}" if path.endswith("/") else ""
            yield plain(f"  {size(many):>8}  {path}{inside}")
        if len(rows) > _ROWS:
            rest = sum(many for _, many, _ in rows[_ROWS:])
            yield f"  {size(rest):>8}  in {len(rows) - _ROWS} more; --json lists every file"
        for reason, paths in private.by_reason(self.tree.left_out):
            yield plain(f"  left out ({reason}): {', '.join(paths)}")
        for path in list(self.tree.left_out)[:1]:
            yield plain(f"  {private.how_to_send(path)}")
        listed = set(private.remarks(self.tree.left_out))
        yield from (plain(f"note: {note}") for note in self.tree.notes if note not in listed)
