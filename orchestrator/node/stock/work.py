"""A run's own working folder, made from its trees: nothing that a script writes there is ever deleted.

<workdir>/runs/<run>/work, and trees: the digests that it was made from, and of its data
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ..base import lenient, trust
from ..base.fault import unwritable
from ..base.paths import absolute, digest_name, plain_name
from ..disk import copies
from ..disk.removing import remove
from ..look import question
from ..serve.agent import Agent, Request

_SECONDS = 600.0  # for the copies, and for what R says about its packages


def make(agent: Agent, request: Request) -> dict[str, Any] | None:
    """Copy the trees; the first one wins.

    Once per run, also when hosts that share the folder all ask.
    Nothing is made while a tree is missing, or one of `also`: the reply then names what is. With `needs` the
    reply says what of it the machine has.
    """
    also, data = ([digest_name(one) for one in request.get(name, ())] for name in ("also", "data"))
    digests = [digest_name(one) for one in request["digests"]]
    folder, trees = (
        run_folder(request["workdir"], request["run"]),
        os.path.join(absolute(request["workdir"]), "trees"),
    )
    order = _Order(folder, trees, digests, also, data)
    if request.get("needs") is not None:
        agent.in_child(request, lambda: _look_and_make(request, order), seconds=_SECONDS)
        return None
    if not os.path.lexists(order.tree(order.digests[0])) and not os.path.lexists(order.work):
        missing = _missing(order.trees, order.wanted)
        if missing:  # no process for that
            return {"work": order.work, "missing": missing, "made": False}
    agent.in_child(request, lambda: _make(order), seconds=_SECONDS)
    return None


def _look_and_make(request: Request, order: _Order) -> dict[str, Any]:
    had = question.have(request["needs"])
    if request.get("makes", True) and had["program"]:
        return {**_make(order), "had": had}
    return {"work": order.work, "missing": [], "made": False, "had": had}


class _Order(NamedTuple):
    """A run's folder that is to be made."""

    run: str  # the folder that it is in
    trees: str  # the folder of the trees
    digests: list[str]  # that it is made from; the first one wins
    also: list[str]  # that are to be there
    data: list[str]  # that the run reads

    @property
    def work(self) -> str:
        return os.path.join(self.run, "work")

    @property
    def wanted(self) -> list[str]:
        return self.digests + self.also

    def tree(self, digest: str) -> str:
        return os.path.join(self.trees, digest)


def _make(order: _Order) -> dict[str, Any]:
    work = order.work
    trust.check_way(os.path.dirname(order.trees), "trees")
    trust.check_way(os.path.dirname(order.trees), "runs", os.path.basename(order.run), "work")
    there = os.path.isdir(work)  # and nothing of a tree is needed for it any more
    missing = _missing(order.trees, order.wanted)
    if missing or there:
        return {"work": work, "missing": missing, "made": False}
    made = f"{work}.{os.uname().nodename}.{os.urandom(6).hex()}"
    try:
        os.makedirs(made)
        _note(order.run, order.wanted + order.data)
        for digest in order.digests:
            _copy(order.tree(digest), made)
        os.rename(made, work)
    except OSError as error:
        remove(made)
        missing = [digest for digest in order.wanted if not os.path.isdir(order.tree(digest))]
        if not missing and not os.path.isdir(work):
            raise unwritable(work, error) from None
        return {"work": work, "missing": missing, "made": False}
    return {"work": work, "missing": [], "made": True}


def run_folder(workdir: str, run: str) -> str:
    return os.path.join(absolute(workdir), "runs", plain_name("run", run))


def trees_of(run_folder: str) -> list[str]:
    """The digests of the trees that a run was made from, and of the data that it reads."""
    return (lenient.text(os.path.join(run_folder, "trees")) or "").split()


def _missing(trees: str, digests: list[str]) -> list[str]:
    return [digest for digest in digests if not _use(os.path.join(trees, digest))]


def _use(tree: str) -> bool:
    """Return whether a tree is there and ours, and touch it: what was used just now is not cleaned away."""
    try:
        os.utime(tree)
    except FileNotFoundError:
        return False
    except OSError:
        pass  # root's
    return trust.is_ours(tree)


def _note(run_folder: str, digests: list[str]) -> None:
    with open(os.path.join(run_folder, "trees"), "w", encoding="ascii") as file:
        file.write("".join(f"{digest}\n" for digest in digests))


def _copy(source: str, target: str) -> None:
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
                else:
                    copies.copy(entry.path, path)
