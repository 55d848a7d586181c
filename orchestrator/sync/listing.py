"""Which files belong to a tree: what git would show, else what the ignore files leave.

From the strongest word to the weakest: `ignore` of [job], .orchestrateignore (the nearest first), what
stays at home unless it is named (`private`), and, where there is no git, .gitignore.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pathspec

from orchestrator.errors import UsageError
from orchestrator.node.base.fault import reason
from orchestrator.sync.private import ALWAYS, ENVIRONMENT_MARKS, Reason, by_name

OURS = ".orchestrateignore"
DEEPEST = 200  # folders in each other; recursion on both sides, and the length of paths, have bounds
_LONGEST = 2048  # bytes of a path: a host adds the folder of the tree, and 4,096 is the most


@dataclass
class CodeListing:
    """Paths relative to the root, and what a person should know about those left out."""

    paths: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    named: set[str] = field(default_factory=set)  # of the paths, those that the user wants whatever they are
    left_out: dict[str, Reason] = field(default_factory=dict)  # a folder's path ends with a slash


def list_files(root: Path, ignore: Sequence[str] = (), own: Iterable[Path] = ()) -> CodeListing:
    """The files and symbolic links of the tree at `root`; `ignore` are further gitignore patterns.

    `own` are folders of ours, which are never part of it wherever they are.
    """
    if not root.is_dir():
        raise UsageError(
            f"cannot read the code at {root}",
            why="it is not a folder",
            hint="run orchestrate from the folder of your code",
        )
    listing = CodeListing()
    # git shows nothing of a folder that its repository ignores: a project in a home kept with git.
    if _in_git(root) and (shown := list(_git_paths(root, listing))):
        rules = _Rules(root, ignore, own, listing, gitignore=False)
        listing.paths = [path for path in shown if not rules.ignored(path)]
        if rules.names_something():  # also what git ignores, as .env and data/ usually are
            hidden = (path for path in _git_paths(root, CodeListing(), ignored=True) if rules.named(path))
            listing.paths = list(dict.fromkeys([*listing.paths, *hidden]))
    else:
        rules = _Rules(root, ignore, own, listing, gitignore=True)
        listing.paths = list(_walk(root, "", rules))
    for path in listing.paths:
        _check_depth(path)
    return listing


def _check_depth(path: str) -> None:
    depth = path.count("/")
    if depth <= DEEPEST and len(os.fsencode(path)) <= _LONGEST:
        return
    raise UsageError(
        f"the code has folders {depth:,} deep: {path[:40]}...",
        why=f"at most {DEEPEST} levels and paths of {_LONGEST:,} bytes can be sent",
        hint=f"list {path.partition('/')[0]}/ in {OURS}, or move it out of the code",
    )


# --- git ---


def _in_git(folder: Path) -> bool:
    done = git(folder, "rev-parse", "--is-inside-work-tree")
    if done is not None:
        check_refusal(folder, done)
    return done is not None and done.returncode == 0 and done.stdout.strip() == b"true"


def git(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes] | None:
    """Ask git about a folder; None where there is no git."""
    if shutil.which("git") is None:
        return None
    # GIT_DIR and its kin are set in hooks and would answer for another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["LC_ALL"] = "C"  # what it says is read
    return subprocess.run(
        ["git", "-C", str(folder), *words],
        capture_output=True,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


def check_refusal(folder: Path, done: subprocess.CompletedProcess[bytes]) -> None:
    """Raise UsageError for a repository that git does not open: nobody else knows what it leaves out.

    That there is none is no refusal, nor that this is the inside of one.
    """
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode == 0 or "(or any" in said or "must be run in a work tree" in said:
        return
    trust = re.search(r"git config --global --add safe\.directory .+", said)
    command = trust[0] if trust else f"git -C {shlex.quote(str(folder))} status"
    raise UsageError(
        f"git does not open the repository of {folder}",
        why=said.partition("\n")[0].removeprefix("fatal: "),
        hint=f"`{command}`{', if you trust it' if trust else ''}",
    )


def _git_paths(root: Path, listing: CodeListing, below: str = "", *, ignored: bool = False) -> Iterator[str]:
    """Tracked files that exist and untracked ones that are not ignored, or the `ignored` ones."""
    folder = root / below
    which = ("-oi",) if ignored else ("-co",)
    done = git(folder, "ls-files", *which, "--exclude-standard", "-z")
    assert done is not None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        hint = f"`git -C {shlex.quote(str(folder))} status`"
        raise UsageError(f"git cannot list the files of {folder}", why=said, hint=hint)
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
    _check_depth(below)
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
    """Rules of what is left out of a tree, and why."""

    def __init__(
        self, root: Path, job: Sequence[str], own: Iterable[Path], listing: CodeListing, *, gitignore: bool
    ) -> None:
        self._root = root
        self._listing = listing
        self._job = _Patterns(pathspec.GitIgnoreSpec.from_lines(job))
        self._own = {Path(os.path.realpath(path)) for path in own}
        self._gitignore = gitignore
        self._specs: dict[tuple[str, str], _Patterns | None] = {}
        self._folders: dict[str, bool] = {}

    def ignored(self, path: str) -> bool:
        """Return True if a path is ignored, itself or with a folder above it."""
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
        """Return True if a path (a folder's ends with a slash) is ignored by itself."""
        if path.rstrip("/").rpartition("/")[2] in ALWAYS:
            return True
        if path.endswith("/") and self._own and Path(os.path.realpath(self._root / path)) in self._own:
            self._listing.left_out[path] = Reason.OURS
            return True
        verdict, named = self._of_user(path)
        if verdict:
            return True
        if named:
            self._listing.named.add(path)
            return False
        if reason := self._private(path):
            self._listing.left_out[path] = reason
            return True
        return verdict is None and self._gitignore and bool(self._nearest(path, ".gitignore")[0])

    def names_something(self) -> bool:
        """Return True if a pattern at the top or of the job brings something back by name."""
        top = self._patterns_in("", OURS)
        return self._job.naming or bool(top and top.naming)

    def named(self, path: str) -> bool:
        """Return True if the user wants a file that git ignores, by a pattern for it or a folder above it."""
        verdict, named = self._of_user(path)
        if named and verdict is False and path.rpartition("/")[2] not in ALWAYS:
            self._listing.named.add(path)
            return True
        return False

    def _of_user(self, path: str) -> tuple[bool | None, bool]:
        """(whether it is ignored, whether it is named as wanted)."""
        verdict, named = self._job.check(path)
        return (verdict, named) if verdict is not None else self._nearest(path, OURS)

    def _private(self, path: str) -> Reason | None:
        marks = ENVIRONMENT_MARKS if path.endswith("/") else ()
        if any((self._root / path / mark).is_file() for mark in marks):
            return Reason.ENVIRONMENT
        return by_name(path)

    def _nearest(self, path: str, name: str) -> tuple[bool | None, bool]:
        """The word of the nearest file of that name that has one."""
        parts = path.rstrip("/").split("/")[:-1]
        for depth in range(len(parts), -1, -1):
            folder = "".join(f"{part}/" for part in parts[:depth])
            patterns = self._patterns_in(folder, name)
            if patterns is not None and (word := patterns.check(path[len(folder) :]))[0] is not None:
                return word
        return None, False

    def _patterns_in(self, folder: str, name: str) -> _Patterns | None:
        if (folder, name) not in self._specs:
            file = self._root / folder / name
            self._specs[folder, name] = _Patterns(_spec(file)) if file.is_file() else None
        return self._specs[folder, name]


class _Patterns:
    """The gitignore patterns of one place."""

    def __init__(self, spec: pathspec.GitIgnoreSpec) -> None:
        self._spec = spec
        # `!*/` or `!*.*` name nothing: what they bring back is not a decision about a secret.
        self._naming = {
            index
            for index, pattern in enumerate(spec.patterns)
            if (text := str(pattern.pattern)).startswith("!") and text.strip("!*/?.")
        }

    @property
    def naming(self) -> bool:
        return bool(self._naming)

    def check(self, path: str) -> tuple[bool | None, bool]:
        """(whether it is ignored; None: not a word about it, whether it is named as wanted)."""
        result = self._spec.check_file(path)
        return result.include, result.include is False and result.index in self._naming


def _spec(file: Path) -> pathspec.GitIgnoreSpec:
    try:
        lines = file.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
        return pathspec.GitIgnoreSpec.from_lines(lines)
    except OSError as error:
        raise unreadable(str(file), error) from error
    except ValueError as error:
        raise UsageError(
            f"cannot use {file}",
            why=f"a line is not a gitignore pattern: {error}",
            hint="`git help gitignore` has the rules",
        ) from error


def unreadable(path: str, error: OSError) -> UsageError:
    return UsageError(
        f"cannot read {path}",
        why=reason(error),
        hint=f"make it readable, or list it in {OURS}",
    )
