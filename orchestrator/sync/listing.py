"""Which files belong to a tree: what git would show, else what the ignore files leave."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pathspec

from orchestrator.errors import UsageError

OURS = ".orchestrateignore"
_ALWAYS = (".git", "__pycache__/")  # __pycache__ would change the digest with every run


@dataclass
class Listing:
    """Paths relative to the root, and what a person should know about those left out."""

    paths: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def list_files(root: Path, ignore: Sequence[str] = ()) -> Listing:
    """The files and symbolic links of the tree at `root`; `ignore` are further gitignore patterns."""
    if not root.is_dir():
        raise UsageError(
            f"cannot read the code at {root}",
            why="it is not a folder",
            hint="run orchestrate from the folder of your code",
        )
    listing = Listing()
    # git shows nothing of a folder that its repository ignores: a project in a home kept with git.
    if _in_git(root) and (shown := list(_git_paths(root, listing))):
        rules = _Rules(root, (OURS,), (*_ALWAYS, *ignore))
        listing.paths = [path for path in shown if not rules.ignored(path)]
    else:
        rules = _Rules(root, (".gitignore", OURS), (*_ALWAYS, *ignore))
        listing.paths = list(_walk(root, "", rules))
    return listing


# --- git ---


def _in_git(folder: Path) -> bool:
    if shutil.which("git") is None:
        return False
    done = _git(folder, "rev-parse", "--is-inside-work-tree")
    return done.returncode == 0 and done.stdout.strip() == b"true"


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    # GIT_DIR and its kin are set in hooks and would answer for another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        ["git", "-C", str(folder), *words],
        capture_output=True,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


def _git_paths(root: Path, listing: Listing, below: str = "") -> Iterator[str]:
    """Tracked files that exist and untracked ones that are not ignored; into submodules too."""
    folder = root / below
    done = _git(folder, "ls-files", "-co", "--exclude-standard", "-z")
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise UsageError(f"git cannot list the files of {folder}", why=said, hint=f"git -C {folder} status")
    names = dict.fromkeys(os.fsdecode(name).rstrip("/") for name in done.stdout.split(b"\0") if name)
    for name in names:  # in a conflict git says a name three times
        path = f"{below}{name}"
        full = root / path
        if full.is_symlink() or not full.is_dir():
            if os.path.lexists(full):  # a tracked file may be deleted
                yield path
        elif (full / ".git").exists():
            yield from _git_paths(root, listing, f"{path}/")
        else:
            listing.notes.append(
                f"{path} is a submodule that is not checked out: git submodule update --init"
            )


# --- no git ---


def _walk(root: Path, below: str, rules: _Rules) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(root / below), key=lambda entry: entry.name)
    except OSError as error:
        raise unreadable(below or str(root), error) from error
    for entry in entries:
        path = f"{below}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            if not rules.ignores(f"{path}/"):
                yield from _walk(root, f"{path}/", rules)
        elif not rules.ignores(path):
            yield path


class _Rules:
    """gitignore rules of a tree: patterns for all of it, and files whose patterns hold below them."""

    def __init__(self, root: Path, names: Sequence[str], always: Sequence[str]) -> None:
        self._root = root
        self._names = names
        self._always = pathspec.GitIgnoreSpec.from_lines(always)
        self._specs: dict[str, list[pathspec.GitIgnoreSpec]] = {}
        self._folders: dict[str, bool] = {}

    def ignored(self, path: str) -> bool:
        """Whether a path is ignored, itself or with a folder above it."""
        folder = path.rpartition("/")[0]
        return self._folder_ignored(folder) or self.ignores(path)

    def _folder_ignored(self, folder: str) -> bool:
        if not folder:
            return False
        if folder not in self._folders:
            above = folder.rpartition("/")[0]
            self._folders[folder] = self._folder_ignored(above) or self.ignores(f"{folder}/")
        return self._folders[folder]

    def ignores(self, path: str) -> bool:
        """Whether a path (a folder's ends with a slash) is ignored by itself; the nearest file decides."""
        if self._always.match_file(path):
            return True
        parts = path.rstrip("/").split("/")[:-1]
        for depth in range(len(parts), -1, -1):
            folder = "".join(f"{part}/" for part in parts[:depth])
            for spec in self._specs_in(folder):
                verdict = spec.check_file(path[len(folder) :]).include
                if verdict is not None:
                    return verdict
        return False

    def _specs_in(self, folder: str) -> list[pathspec.GitIgnoreSpec]:
        if folder not in self._specs:
            # Ours is read last, so that it has the last word.
            files = [self._root / folder / name for name in reversed(self._names)]
            self._specs[folder] = [_spec(file) for file in files if file.is_file()]
        return self._specs[folder]


def _spec(file: Path) -> pathspec.GitIgnoreSpec:
    try:
        lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        return pathspec.GitIgnoreSpec.from_lines(lines)
    except OSError as error:
        raise unreadable(str(file), error) from error
    except ValueError as error:
        raise UsageError(
            f"cannot use {file}",
            why=f"a line is no gitignore pattern: {error}",
            hint="see: git help gitignore",
        ) from error


def unreadable(path: str, error: OSError) -> UsageError:
    return UsageError(
        f"cannot read {path}",
        why=error.strerror or str(error),
        hint=f"make it readable, or list it in {OURS}",
    )
