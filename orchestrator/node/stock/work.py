"""A run's own working folder, made from its tree: nothing that a script writes there is ever deleted.

<workdir>/runs/<run>/work, and trees: the digests that it was made from, and of its data
"""

from __future__ import annotations

import fcntl
import os
import stat
from typing import Any

from ..base import lenient, trust
from ..base.descriptors import write_all
from ..base.fault import unwritable
from ..base.paths import absolute, digest_name, plain_name
from ..disk.listing import walk
from ..disk.removing import remove
from ..serve.agent import Agent, Request
from ..task import environ

_CLONE = 0x40049409  # FICLONE of linux/fs.h
_PIECE = 1 << 20


def make(_agent: Agent, request: Request) -> dict[str, Any]:
    """Copy a tree, once per run, also when hosts that share the folder all ask.

    Nothing is made while the tree is missing, or one of `also`: the reply then names what is. With `needs`
    the reply says what of it the machine has.
    """
    workdir, run = absolute(request["workdir"]), run_folder(request["workdir"], request["run"])
    work, trees = os.path.join(run, "work"), os.path.join(workdir, "trees")
    digests = [digest_name(one) for one in (request["digest"], *request.get("also", ()))]
    data = [digest_name(one) for one in request.get("data", ())]
    reply: dict[str, Any] = {"work": work, "missing": [], "made": False}
    if request.get("needs") is not None:
        reply["had"] = _have(request["needs"])
        if not (request.get("makes", True) and reply["had"]["program"]):
            return reply
    trust.check_way(workdir, "trees")
    trust.check_way(workdir, "runs", os.path.basename(run), "work")
    there = os.path.isdir(work)  # and nothing of a tree is needed for it any more
    reply["missing"] = [digest for digest in digests if not _use(os.path.join(trees, digest))]
    if reply["missing"] or there:
        return reply
    made = f"{work}.{os.uname().nodename}.{os.urandom(6).hex()}"
    try:
        os.makedirs(made)
        with open(os.path.join(run, "trees"), "w", encoding="ascii") as file:
            file.write("".join(f"{digest}\n" for digest in digests + data))
        _copy(os.path.join(trees, digests[0]), made)
        os.rename(made, work)
        reply["made"] = True
    except OSError as error:
        remove(made)
        reply["missing"] = [one for one in digests if not os.path.isdir(os.path.join(trees, one))]
        if not reply["missing"] and not os.path.isdir(work):
            raise unwritable(work, error) from None
    return reply


def _have(needs: dict[str, Any]) -> dict[str, Any]:
    """Say what of a job's needs is here; without a `setup` and paths, a look at PATH tells it."""
    if needs.get("setup") or needs["paths"]:
        from ..look import question  # it brings `subprocess`, which most jobs do not need

        return question.have(needs)
    if not needs["program"]:
        return {"program": True, "paths": []}
    command, env = environ.of_task({"argv": [needs["program"]], "python": needs["python"]}, {})
    place = environ.find_program(os.fsdecode(command[0]), env.get(b"PATH", os.defpath.encode()))
    is_program = place is not None and os.path.isfile(place) and os.access(place, os.X_OK)
    return {"program": is_program, "paths": []}


def run_folder(workdir: str, run: str) -> str:
    return os.path.join(absolute(workdir), "runs", plain_name("run", run))


def trees_of(run_folder: str) -> list[str]:
    """The digests of the trees that a run was made from, and of the data that it reads."""
    return (lenient.text(os.path.join(run_folder, "trees")) or "").split()


def _use(tree: str) -> bool:
    """Return whether a tree is there and ours, and touch it: what was used just now is not cleaned away."""
    lenient.touch(tree)
    return trust.is_ours(tree)


def _copy(source: str, target: str) -> None:
    def enter(path: str) -> bool:
        os.mkdir(os.path.join(target, path))
        return True

    for path, entry in walk(source, enter):
        _copy_file(entry.path, os.path.join(target, path))


def _copy_file(source: str, target: str) -> None:
    """Copy a file, as a clone where the file system can: it shares its blocks until one side is written.

    So a task that writes never alters the tree. A link stays a link.
    """
    status = os.lstat(source)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
        return
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        try:
            os.fchmod(writer, stat.S_IMODE(status.st_mode))
            try:
                fcntl.ioctl(writer, _CLONE, reader)
            except OSError:
                while data := os.read(reader, _PIECE):
                    write_all(writer, data)
        finally:
            os.close(writer)
    finally:
        os.close(reader)
