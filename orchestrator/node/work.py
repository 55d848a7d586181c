"""A run's own working folder, copied from its trees: nothing that a script writes there is ever deleted.

<workdir>/runs/<run>/work, and trees: the digests that it was made from
"""

from __future__ import annotations

import os

from .paths import plain_name
from .trees import folder_of, remove, unwritable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from .agent import Agent, Request


def make(_agent: Agent, request: Request) -> Dict[str, Any]:
    """Copy the trees, the first one wins; once per run, also when hosts that share the folder all ask.

    Nothing is made while a tree is missing, or one of `also`: the reply then names what is.
    """
    trees = folder_of(request)
    work = os.path.join(run_folder(request["workdir"], request["run"]), "work")
    made = f"{work}.{os.uname().nodename}.{os.urandom(6).hex()}"
    wanted = [*request["digests"], *request.get("also", ())]
    missing = [digest for digest in wanted if not _use(os.path.join(trees, digest))]
    if missing or os.path.isdir(work):
        return {"work": work, "missing": missing, "made": False}
    sources = [os.path.join(trees, digest) for digest in request["digests"]]
    try:
        os.makedirs(made)
        _note(os.path.dirname(work), wanted)
        for source in sources:
            _copy(source, made)
        os.rename(made, work)
    except OSError as error:
        remove(made)
        missing = [digest for digest in wanted if not os.path.isdir(os.path.join(trees, digest))]
        if not missing and not os.path.isdir(work):
            raise unwritable(work, error) from None
        return {"work": work, "missing": missing, "made": False}
    return {"work": work, "missing": [], "made": True}


def run_folder(workdir: str, run: str) -> str:
    return os.path.join(os.path.abspath(os.path.expanduser(workdir)), "runs", plain_name("run", run))


def trees_of(run_folder: str) -> List[str]:
    """The digests of the trees that a run was made from."""
    try:
        with open(os.path.join(run_folder, "trees"), encoding="ascii") as file:
            return file.read().split()
    except (OSError, ValueError):
        return []


def _use(tree: str) -> bool:
    """Whether it is there. Touched: what was used just now is not cleaned away."""
    try:
        os.utime(tree)
    except PermissionError:  # another user's, in a folder that is shared
        return os.path.isdir(tree)
    except OSError:
        return False
    return True


def _note(run_folder: str, digests: List[str]) -> None:
    with open(os.path.join(run_folder, "trees"), "w", encoding="ascii") as file:
        file.write("".join(f"{digest}\n" for digest in digests))


def _copy(source: str, target: str) -> None:
    import shutil

    with os.scandir(source) as entries:
        for entry in entries:
            path = os.path.join(target, entry.name)
            if entry.is_dir(follow_symlinks=False):
                if not os.path.islink(path):
                    os.makedirs(path, exist_ok=True)
                    _copy(entry.path, path)
            elif not os.path.lexists(path):
                shutil.copy(entry.path, path, follow_symlinks=False)
