"""Which folder is the code, and which files in it: what git would show, else what the ignore files leave.

From the strongest word to the weakest: `ignore` of [job], .orchestrateignore, what stays at home unless it is
named (`private`), and, where there is no git, .gitignore. The ignore files are those at the top.
"""

from __future__ import annotations

import os
import pwd
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
from orchestrator.plainfile import at_home
from orchestrator.sync.private import ALWAYS, ENVIRONMENT_MARKS, Reason, by_name

OURS = ".orchestrateignore"
DEEPEST = 200  # folders in each other; recursion on both sides, and the length of paths, have bounds
# Folders of the system; whoever stands in one of them has forgotten to change to a project.
_SYSTEM = (
    "/ /bin /boot /dev /etc /home /lib /lib64 /opt /proc /root /run /sbin /srv /sys /tmp /usr /var /var/tmp"
)
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
            if not rules.ignored(f"{path}/"):
                yield from _walk(root, f"{path}/", rules)
        elif not rules.ignored(path):
            yield path


class _Rules:
    """Rules of what is left out of a tree, and why. A folder's path ends with a slash."""

    def __init__(
        self, root: Path, job: Sequence[str], own: Iterable[Path], listing: CodeListing, *, gitignore: bool
    ) -> None:
        self._root = root
        self._listing = listing
        self._user = [_Patterns(pathspec.GitIgnoreSpec.from_lines(job)), _Patterns(_spec(root / OURS))]
        self._git = _Patterns(_spec(root / ".gitignore")) if gitignore else None
        self._own = {real(path) for path in own}
        self._folders: dict[str, bool] = {}

    def ignored(self, path: str) -> bool:
        """Return True if a path is ignored, itself or with a folder above it."""
        folder = path.rstrip("/").rpartition("/")[0] + "/"
        if folder != "/":
            if folder not in self._folders:
                self._folders[folder] = self.ignored(folder)
            if self._folders[folder]:
                return True
        if path.rstrip("/").rpartition("/")[2] in ALWAYS:
            return True
        if path.endswith("/") and self._own and real(self._root / path) in self._own:
            self._listing.left_out[path] = Reason.OURS
            return True
        verdict, named = self._of_user(path)
        if named:
            self._listing.named.add(path)
        if verdict or named:
            return not named
        marks = ENVIRONMENT_MARKS if path.endswith("/") else ()
        is_environment = any((self._root / path / mark).is_file() for mark in marks)
        if reason := Reason.ENVIRONMENT if is_environment else by_name(path):
            self._listing.left_out[path] = reason
            return True
        if verdict is not None or self._git is None:
            return False
        if path.endswith("/") and "*" in _lines(self._root / path / ".gitignore"):  # a pull's results, say
            return True
        return bool(self._git.check(path)[0])

    def names_something(self) -> bool:
        """Return True if a pattern brings something back by name."""
        return any(patterns.naming for patterns in self._user)

    def named(self, path: str) -> bool:
        """Return True if the user wants a file that git ignores, by a pattern for it or a folder above it."""
        named = self._of_user(path)[1] and path.rpartition("/")[2] not in ALWAYS
        if named:
            self._listing.named.add(path)
        return named

    def _of_user(self, path: str) -> tuple[bool | None, bool]:
        """(whether it is ignored, whether it is named as wanted)."""
        words = (patterns.check(path) for patterns in self._user)
        return next((word for word in words if word[0] is not None), (None, False))


class _Patterns:
    """The gitignore patterns of one place."""

    def __init__(self, spec: pathspec.GitIgnoreSpec) -> None:
        self._spec = spec
        # `!*/` or `!*.*` name nothing: what they bring back is not a decision about a secret.
        self.naming = {
            index
            for index, pattern in enumerate(spec.patterns)
            if (text := str(pattern.pattern)).startswith("!") and text.strip("!*/?.")
        }

    def check(self, path: str) -> tuple[bool | None, bool]:
        """(whether it is ignored; None: not a word about it, whether it is named as wanted)."""
        result = self._spec.check_file(path)
        return result.include, result.include is False and result.index in self.naming


def _spec(file: Path) -> pathspec.GitIgnoreSpec:
    try:
        return pathspec.GitIgnoreSpec.from_lines(_lines(file))
    except ValueError as error:
        raise UsageError(
            f"cannot use {file}",
            why=f"a line is not a gitignore pattern: {error}",
            hint="`git help gitignore` has the rules",
        ) from error


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8", errors="surrogateescape") if file.is_file() else ""
    except OSError as error:
        raise unreadable(str(file), error) from error
    return text.split("\n")


def unreadable(path: str, error: OSError) -> UsageError:
    return UsageError(
        f"cannot read {path}",
        why=reason(error),
        hint=f"make it readable, or list it in {OURS}",
    )


# --- which folder ---


@dataclass(frozen=True)
class CodeRoot:
    """The folder that is sent, and where in it the tasks run ("" is its top)."""

    path: Path
    cwd: str = ""
    from_git: bool = False


def find_root(here: Path, wish: str | None, state: Path) -> CodeRoot:
    """The code of somebody who stands in `here`; `wish` is a folder that the user named.

    Raise UsageError for a folder that is no project: a home, the system's, what is above our `state`.
    """
    here = here.resolve()
    try:
        str(here).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"cannot launch from {here}", why="its name is not UTF-8", hint="rename it"
        ) from None
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
        _refuse(root, state)
        return CodeRoot(root, _below(here, root))
    top = _top_of_git(here)
    if top is not None and _why_not(top, state) is None:
        return CodeRoot(top, _below(here, top), from_git=True)
    _refuse(here, state)
    return CodeRoot(here)


def real(path: Path) -> Path:
    """Where a path leads; unlike `Path.resolve` without an error for links that lead to themselves."""
    return Path(os.path.realpath(path))


def own_folders(state: Path, workdirs: Iterable[str]) -> tuple[Path, ...]:
    """List our own folders here, no part of anybody's code; `workdirs` are those of local hosts."""
    return (state.parent, *(Path(workdir).expanduser() for workdir in workdirs))


def _below(here: Path, root: Path) -> str:
    below = here.relative_to(root).as_posix()
    return "" if below == "." else below


def _top_of_git(here: Path) -> Path | None:
    """The top of a repository; None also for a folder that it ignores: git would show nothing of it."""
    done = git(here, "rev-parse", "--show-toplevel")
    if done is not None:
        check_refusal(here, done)
    if done is None or done.returncode != 0:
        return None
    top = Path(os.fsdecode(done.stdout.rstrip(b"\n"))).resolve()
    ignored = git(here, "check-ignore", "-q", str(here)) if top != here else None
    if not here.is_relative_to(top) or (ignored is not None and ignored.returncode == 0):
        return None
    return top


def _refuse(root: Path, state: Path) -> None:
    if why := _why_not(root, state):
        raise UsageError(
            f"{root} cannot be sent as code",
            why=why,
            hint="`mkdir` a folder for the project, move the code there and launch from it",
        )


def _why_not(root: Path, state: Path) -> str | None:
    for home in _homes():
        if root == home:
            return "it is a home folder, with everything else that is in it"
        if home.is_relative_to(root):
            return f"the home folder {home} is in it"
    if str(root) in _SYSTEM.split():
        return "it is a folder of the system"
    kept = real(state).parent
    if root == kept or root.is_relative_to(kept):
        return "orchestrate keeps its runs there"
    return None


def _homes() -> Iterable[Path]:
    """The home that programs are told, and the one of the account."""
    homes = [Path.home()]
    try:
        homes.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    except KeyError:  # a uid without a name
        pass
    return dict.fromkeys(real(home) for home in homes if home.is_absolute() and home != Path("/"))
