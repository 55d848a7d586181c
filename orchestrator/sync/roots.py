"""Which folder is the code: the top of the git repository that one stands in, else the folder itself."""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.plainfile import at_home
from orchestrator.sync.listing import check_refusal, git

# Folders of the system; whoever stands in one of them has forgotten to change to a project.
_SYSTEM = (
    "/ /bin /boot /dev /etc /home /lib /lib64 /opt /proc /root /run /sbin /srv /sys /tmp /usr /var /var/tmp"
)


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
    """Where it leads; unlike `Path.resolve` without an error for links that lead to themselves."""
    return Path(os.path.realpath(path))


def own_folders(state: Path, workdirs: Iterable[str]) -> tuple[Path, ...]:
    """List our own folders here, no part of anybody's code; `workdirs` are those of local hosts."""
    return (state.parent, *(Path(workdir).expanduser() for workdir in workdirs))


def _below(here: Path, root: Path) -> str:
    below = here.relative_to(root).as_posix()
    return "" if below == "." else below


def _top_of_git(here: Path) -> Path | None:
    """None also for a folder that its repository ignores: git would show nothing of it."""
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
    # A state folder that somebody put into a project is left out; the usual place is part of a home.
    usual = next((home / ".local" for home in _homes() if kept.is_relative_to(home / ".local")), None)
    if usual is not None and root.is_relative_to(usual) and kept.is_relative_to(root):
        return "orchestrate keeps its runs in it"
    return None


def _homes() -> Iterable[Path]:
    """The home that programs are told, and the one of the account."""
    homes = [Path.home()]
    try:
        homes.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    except KeyError:  # a uid without a name
        pass
    return dict.fromkeys(real(home) for home in homes if home.is_absolute() and home != Path("/"))
