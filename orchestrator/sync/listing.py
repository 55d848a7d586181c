"""Which folder is the code, and which of its files are sent: git's files, or otherwise all but ignored ones.

By descending priority: `ignore` of [job], .orchestrateignore, files that are private unless named
(`private`), and, without git, .gitignore. The ignore files are those at the top.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shlex
import shutil
import stat
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from orchestrator.errors import UsageError, unless_refused
from orchestrator.plainfile import at_home
from orchestrator.sync.private import ALWAYS, ENVIRONMENT_MARKS, Reason, by_name
from orchestrator.text import size
from orchestrator.value import Value

if TYPE_CHECKING:
    import pathspec

MOST_FILES = 100_000  # the most that one message to a node can list
MOST_BYTES = 10 * 1000**3  # of code: each host receives all of it from this machine
MOST_DIFF = 256 << 10  # characters of a diff that are stored
OURS = ".orchestrateignore"
# System folders: a launch from one was probably meant for a project folder.
_SYSTEM = (
    "/ /bin /boot /dev /etc /home /lib /lib64 /opt /proc /root /run /sbin /srv /sys /tmp /usr /var /var/tmp"
)


class CodeListing(Struct):
    """Paths relative to the root, and remarks for users about skipped ones."""

    paths: list[str] = []
    notes: list[str] = []
    named: set[str] = set()  # of the paths, those that the user includes explicitly
    left_out: dict[str, Reason] = {}  # a folder's path ends with a slash
    links: dict[str, str] = {}  # of the paths, with what each leads to


def list_files(root: Path, ignore: Sequence[str] = (), own: Iterable[Path] = ()) -> CodeListing:
    """Return the files and links of a tree; `own` folders of ours are left out, as are `ignore` patterns."""
    if not root.is_dir():
        raise UsageError(
            f"cannot read the code at {root}",
            why="it is not a folder",
            hint="run orchestrate from the folder of your code",
        )
    listing = CodeListing()
    in_git = _git(root, "rev-parse", "--is-inside-work-tree") == b"true\n"
    # git lists nothing in a folder that its repository ignores, such as a project in a home kept in git.
    if in_git and (shown := list(_git_paths(root, listing))):
        rules = _Rules(root, ignore, own, listing, gitignore=False)
        # If some are named, also what git ignores, as .env and data/ usually are.
        hidden = _git_paths(root, CodeListing(), ignored=True) if rules.naming else ()
        paths: Iterable[str] = itertools.chain(
            itertools.filterfalse(rules.ignored, shown), filter(rules.named, hidden)
        )
    else:
        paths = _walk(root, _Rules(root, ignore, own, listing, gitignore=True))
        if shutil.which("git") is None and any((above / ".git").exists() for above in (root, *root.parents)):
            listing.notes.append(f"git is not on PATH: {root} is sent without the rest of its repository")
    listing.paths = list(_bounded(root, paths, listing.links))
    return listing


def _bounded(root: Path, paths: Iterable[str], links: dict[str, str]) -> dict[str, None]:
    """Return paths within the limits, and note `links`; raise UsageError before reading anything."""
    taken: dict[str, None] = {}
    files, sizes = Counter[str](), Counter[str]()
    total = 0
    for path in paths:
        top = "".join(path.partition("/")[:2])
        with reading(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it is gone
            status = os.lstat(full := f"{root}/{path}")
            sizes[top] += status.st_size
            total += status.st_size
            if stat.S_ISLNK(status.st_mode):
                links[path] = os.readlink(full)
            elif stat.S_ISREG(status.st_mode) and not os.access(full, os.R_OK):  # known before the queue
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        taken[path] = None
        files[top] += 1
        if len(taken) > MOST_FILES or total > MOST_BYTES:
            limit = f"{MOST_FILES:,} files" if total <= MOST_BYTES else size(MOST_BYTES)
            largest = (files if total <= MOST_BYTES else sizes).most_common(3)
            raise UsageError(
                f"the code at {root} has more than {limit}",
                why=f"most of it is in {', '.join(name for name, _ in largest)}",
                hint=f"list data and environments in {OURS}; `[data]` in hosts.toml sends data",
            )
    return taken


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Run git on a folder; return None if there is no git or repository, or if it fails.

    Raise UsageError for a repository that git refuses to open: only git knows its ignored files.
    """
    if shutil.which("git") is None:
        return None
    # Hooks set GIT_DIR and related variables, which select another repository; settings of the user hold.
    environment = {name: text for name, text in os.environ.items() if not re.match("GIT_(?!CONFIG_)", name)}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        check=False,
        env={**environment, "LC_ALL": "C"},  # its messages are parsed
        stdin=subprocess.DEVNULL,
    )
    words_of_git = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode == 0:
        return done.stdout
    if not words_of_git or "(or any" in words_of_git or "must be run in a work tree" in words_of_git:
        return None
    raise UsageError(
        f"git does not open the repository of {folder}",
        why=words_of_git.partition("\n")[0].removeprefix("fatal: "),
        hint=f"`git -C {shlex.quote(str(folder))} status` says more",
    )


def git_state(root: Path) -> list[str]:
    """Return commit, branch and the beginning of the diff to it; nothing if there is no commit."""
    try:
        head = _git(root, "rev-parse", "HEAD", "--abbrev-ref", "HEAD") or b""
        diff = _git(root, "diff", "--no-ext-diff", "HEAD") or b"" if head else b""
    except (UsageError, OSError):  # no commit yet; or git cannot be started
        return []
    commit, _, branch = head.decode("utf-8", "replace").rstrip("\n").partition("\n")
    return [commit, branch, diff.decode("utf-8", "replace")[:MOST_DIFF]]


def _git_paths(root: Path, listing: CodeListing, below: str = "", *, ignored: bool = False) -> Iterator[str]:
    """Return tracked files that exist and untracked ones that are not ignored, or the `ignored` ones."""
    which = ("-oi",) if ignored else ("-co",)
    output = _git(root / below, "ls-files", *which, "--exclude-standard", "-z") or b""
    names = dict.fromkeys(os.fsdecode(name).rstrip("/") for name in output.split(b"\0") if name)
    for name in names:  # in a conflict git lists a name three times
        path, mode = f"{below}{name}", 0
        with reading(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            mode = os.lstat(f"{root}/{path}").st_mode
        if not stat.S_ISDIR(mode):
            if mode:  # a tracked file may be deleted
                yield path
        elif (root / path / ".git").exists():
            yield from _git_paths(root, listing, f"{path}/")
        else:
            listing.notes.append(
                f"{path} is a submodule that is not checked out: git submodule update --init"
            )


def _walk(root: Path, rules: _Rules) -> Iterator[str]:
    waiting = [""]
    while waiting:
        below = waiting.pop()
        with reading(below or root):
            entries = sorted(os.scandir(root / below), key=lambda entry: entry.name)
        for entry in entries:
            path = f"{below}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if not rules.ignored(f"{path}/"):
                    waiting.append(f"{path}/")
            elif not rules.ignored(path):
                yield path


class _Rules:
    """Rules for what is left out of a tree, and why. A folder's path ends with a slash."""

    def __init__(
        self, root: Path, job: Sequence[str], own: Iterable[Path], listing: CodeListing, *, gitignore: bool
    ) -> None:
        self._root = root
        self._listing = listing
        self._user = _spec(root / OURS, job)
        self._git = _spec(root / ".gitignore") if gitignore else None
        self._own = {real(path) for path in own}
        self._folders: dict[str, bool] = {}
        # `!*/` or `!*.*` name nothing in particular, so they do not include a secret
        self.naming = {
            index
            for index, pattern in enumerate(self._user.patterns)
            if (text := str(pattern.pattern)).startswith("!") and text.strip("!*/?.")
        }

    def ignored(self, path: str) -> bool:
        """Return True if a path is ignored, by itself or through a parent folder."""
        above, _, name = path.rstrip("/").rpartition("/")
        if above:
            if above not in self._folders:
                self._folders[above] = self.ignored(f"{above}/")
            if self._folders[above]:
                return True
        if name in ALWAYS:
            return True
        if path.endswith("/") and self._own and real(self._root / path) in self._own:
            self._listing.left_out[path] = Reason.OURS
            return True
        verdict = self._user.check_file(path).include
        if verdict or (verdict is False and self.named(path)):
            return bool(verdict)
        marks = ENVIRONMENT_MARKS if path.endswith("/") else ()
        is_environment = any(_is_file(self._root / path / mark) for mark in marks)
        if reason := Reason.ENVIRONMENT if is_environment else by_name(path):
            self._listing.left_out[path] = reason
            return True
        if verdict is not None or self._git is None:
            return False
        own = _lines(self._root / path / ".gitignore") if path.endswith("/") else ()
        if "*" in own:  # the results of a pull, for example
            return True
        return self._git.match_file(path)

    def named(self, path: str) -> bool:
        """Return True if the user includes a path, by a pattern for it or for a parent folder."""
        result = self._user.check_file(path)
        is_named = result.include is False and result.index in self.naming
        is_named &= path.rpartition("/")[2] not in ALWAYS
        if is_named:
            self._listing.named.add(path)
        return is_named


def _spec(file: Path, more: Sequence[str] = ()) -> pathspec.GitIgnoreSpec:
    import pathspec  # noqa: PLC0415 - 15 ms of every command, and git knows its own rules

    try:
        return pathspec.GitIgnoreSpec.from_lines([*_lines(file), *more])
    except ValueError as error:
        raise UsageError(
            f"cannot use {file}",
            why=f"a line is not a gitignore pattern: {error}",
            hint="`git help gitignore` has the rules",
        ) from error


def _lines(file: Path) -> list[str]:
    with reading(file):
        text = file.read_text(encoding="utf-8-sig", errors="surrogateescape") if _is_file(file) else ""
    return text.split("\n")


def _is_file(path: Path) -> bool:
    """Return False also in a folder that cannot be read, which is an error of its own."""
    return os.path.isfile(path)  # noqa: PTH113 - Path raises


def reading(path: str | Path) -> contextlib.AbstractContextManager[None]:
    """Raise UsageError for a file or folder of the code that cannot be read."""
    return unless_refused(f"cannot read {path}", f"make it readable, or list it in {OURS}")


# --- which folder ---


class CodeRoot(Value):
    """The folder that is sent, and the folder in it where the tasks run ("" is its top)."""

    path: Path
    cwd: str = ""
    from_git: bool = False


def find_root(here: Path, wish: str | None, state: Path) -> CodeRoot:
    """Return the code for a launch from `here`; `wish` is a folder that the user named.

    Raise UsageError for a folder that is not a project: a home, a system folder, a parent of our `state`.
    """
    here = here.resolve()
    root, from_git = here, False
    if wish is not None:
        root = real(here / at_home(wish))
        if not root.is_dir():
            raise UsageError(
                f"there is no folder {root} to send",
                hint="name the current folder, or one above it: `--code .`",
            )
        if not here.is_relative_to(root):
            raise UsageError(
                f"the code at {root} does not hold {here}",
                why="the tasks run in the folder that corresponds to the current one",
                hint=f"`cd {shlex.quote(str(root))}`, or name a folder above this one",
            )
    elif (top := _top_of_git(here)) is not None and not _why_not(top, state):
        root, from_git = top, True
    if why := _why_not(root, state):
        raise UsageError(
            f"{root} cannot be sent as code",
            why=why,
            hint="`mkdir` a folder for the project, move the code there and launch from it",
        )
    below = here.relative_to(root).as_posix()
    if below.encode(errors="ignore").decode() != below:  # a plan is UTF-8
        raise UsageError(
            f"the folder {below!a} of {root} is not UTF-8",
            why="the tasks run in the folder that corresponds to the current one",
            hint="rename it, or send it alone: `--code .`",
        )
    return CodeRoot(root, "" if below == "." else below, from_git)


def real(path: Path) -> Path:
    """Return where a path leads; unlike `Path.resolve` without an error for circular links."""
    return Path(os.path.realpath(path))


def _top_of_git(here: Path) -> Path | None:
    """Return the top of a repository; None for a folder that it ignores: git would list nothing in it."""
    output = _git(here, "rev-parse", "--show-toplevel")
    if output is None:
        return None
    top = Path(os.fsdecode(output.rstrip(b"\n"))).resolve()
    if top != here and _git(here, "check-ignore", "-q", str(here)) is not None:
        return None
    return top if here.is_relative_to(top) else None


def _why_not(root: Path, state: Path) -> str:
    home, kept = real(Path.home()), real(state).parent
    if home.is_relative_to(root):
        return f"the home folder {home} is in it" if root != home else "it is a home folder"
    if str(root) in _SYSTEM.split():
        return "it is a folder of the system"
    return "orchestrate keeps its runs there" if root.is_relative_to(kept) else ""
