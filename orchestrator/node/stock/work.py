"""A run's own working folder, made from its trees: nothing that a script writes there is ever deleted.

<workdir>/runs/<run>/work, and trees: the digests that it was made from, and of its data
"""

from __future__ import annotations

import os

from ..base import trust
from ..base.paths import digest_name, plain_name
from ..disk import copies, incoming
from ..disk.removing import remove
from .lending import ChangedError, Lender, is_large, is_whole
from .trees import folder_of, unwritable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from ..serve.agent import Agent, Request


def make(agent: Agent, request: Request) -> Dict[str, Any]:
    """Copy the trees, but for what is lent; the first one wins.

    Once per run, also when hosts that share the folder all ask.
    Nothing is made while a tree is missing, or one of `also`: the reply then names what is.
    """
    trees = folder_of(request)
    work = os.path.join(run_folder(request["workdir"], request["run"]), "work")
    made = f"{work}.{os.uname().nodename}.{os.urandom(6).hex()}"
    digests = [digest_name(digest) for digest in request["digests"]]
    wanted = digests + [digest_name(digest) for digest in request.get("also", ())]
    data = [digest_name(digest) for digest in request.get("data", ())]
    workdir = os.path.dirname(trees)
    trust.check_way(workdir, "trees")
    trust.check_way(workdir, "runs", os.path.basename(os.path.dirname(work)), "work")
    there = os.path.isdir(work)  # and nothing of a tree is needed for it any more
    missing = [digest for digest in wanted if not _use(os.path.join(trees, digest), there)]
    if missing or there:
        return {"work": work, "missing": missing, "made": False}
    sources = [os.path.join(trees, digest) for digest in digests]
    lender = Lender(trees, None if agent.state_error else agent.paths)
    try:
        os.makedirs(made)
        incoming.hold(agent, made)
        _note(os.path.dirname(work), wanted + data)
        for source in sources:
            _copy(source, made, lender)
        os.rename(made, work)
    except ChangedError as error:
        remove(made)
        return {"work": work, "missing": [os.path.basename(error.tree)], "made": False}
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
    """The digests of the trees that a run was made from, and of the data that it reads."""
    try:
        with open(os.path.join(run_folder, "trees"), encoding="ascii") as file:
            return file.read().split()
    except (OSError, ValueError):
        return []


def _use(tree: str, whole_or_not: bool) -> bool:
    """Whether it is there, ours, and whole. Touched: what was used just now is not cleaned away."""
    try:
        os.utime(tree)
    except FileNotFoundError:
        return False
    except OSError:
        pass  # root's
    return trust.is_ours(tree) and (whole_or_not or is_whole(tree))


def _note(run_folder: str, digests: List[str]) -> None:
    with open(os.path.join(run_folder, "trees"), "w", encoding="ascii") as file:
        file.write("".join(f"{digest}\n" for digest in digests))


def _copy(source: str, target: str, lender: Lender) -> None:
    waiting = [""]
    while waiting:
        below = waiting.pop()
        with os.scandir(os.path.join(source, below)) as entries:
            for entry in entries:
                relative = os.path.join(below, entry.name)
                path = os.path.join(target, relative)
                if entry.is_dir(follow_symlinks=False):
                    if not os.path.islink(path):
                        os.makedirs(path, exist_ok=True)
                        waiting.append(relative)
                elif os.path.lexists(path):
                    continue
                elif is_large(entry.stat(follow_symlinks=False)):
                    lender.give(source, relative, path)
                else:
                    copies.copy(entry.path, path)
