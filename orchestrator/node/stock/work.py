"""A run's own working folder, made from its tree: nothing that a script writes there is ever deleted.

<workdir>/runs/<run>/work, and trees: the digests that it was made from, and of its data
<workdir>/.share-<nonce>/<host>: hosts that see the same working folder each leave their name, then all look
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from ..base import lenient, trust
from ..base.fault import unwritable
from ..base.paths import absolute, plain_name
from ..disk.removing import remove
from ..serve.agent import Agent, Request
from ..task import environ


def make(_agent: Agent, request: Request) -> dict[str, Any]:
    """Copy a tree, once per run, also when hosts that share the folder all ask.

    Nothing is made while the tree is missing, or one of `also`: the reply then names what is. With `needs`
    the reply says what of it the machine has.
    """
    workdir, run = absolute(request["workdir"]), run_folder(request["workdir"], request["run"])
    work = os.path.join(run, "work")
    digests = [request["digest"], *request.get("also", ())]
    reply: dict[str, Any] = {"work": work, "missing": [], "made": False}
    if request.get("needs") is not None:
        reply["had"] = _have(request["needs"])
        if not (request.get("makes", True) and reply["had"]["program"]):
            return reply
    trust.check_way(workdir, "trees")
    trust.check_way(workdir, "runs", os.path.basename(run), "work")
    there = os.path.isdir(work)  # and nothing of a tree is needed for it any more
    trees = {digest: os.path.join(workdir, "trees", digest) for digest in digests}
    for tree in trees.values():
        lenient.touch(tree)  # what was used just now is not cleaned away
    reply["missing"] = [digest for digest in digests if not trust.is_ours(trees[digest])]
    if reply["missing"] or there:
        return reply
    made = f"{work}.{os.uname().nodename}.{os.urandom(6).hex()}"
    try:
        os.makedirs(run, exist_ok=True)
        with open(os.path.join(run, "trees"), "w", encoding="utf-8") as file:
            file.write("".join(f"{digest}\n" for digest in [*digests, *request.get("data", ())]))
        shutil.copytree(trees[digests[0]], made, symlinks=True)
        os.rename(made, work)
        reply["made"] = True
    except OSError as error:
        remove(made)
        reply["missing"] = [one for one in digests if not os.path.isdir(trees[one])]
        if not reply["missing"] and not os.path.isdir(work):
            if isinstance(error, shutil.Error):  # a list with every file that could not be copied
                first = str(error.args[0][0][2])  # "[Errno 28] No space left on device: ..."
                error = OSError(0, first.partition("] ")[2].partition(": ")[0] or first)
            raise unwritable(work, error) from None
    return reply


def _have(needs: dict[str, Any]) -> dict[str, Any]:
    """Say what of a job's needs is here; without a setup and paths PATH alone decides."""
    if needs.get("setup") or needs["paths"]:
        from ..look import facts  # it brings `subprocess`, which most jobs do not need

        return facts.have(needs)
    command, env = environ.of_task({"argv": [needs["program"]], "python": needs["python"]}, {})
    return {
        "program": shutil.which(os.fsdecode(command[0]), path=os.fsdecode(env[b"PATH"])) is not None,
        "paths": [],
    }


def run_folder(workdir: str, run: str) -> str:
    return os.path.join(absolute(workdir), "runs", plain_name("run", run))


def share(_agent: Agent, request: Request) -> dict[str, Any]:
    """Take one step: `write` our name, `read` the names that this host sees, or `clean` up."""
    workdir = absolute(request["workdir"])
    folder = os.path.join(workdir, ".share-" + plain_name("nonce", request["nonce"]))
    hosts: list[str] = []
    try:
        if request["step"] == "write":
            _write(workdir, folder, plain_name("host", request["host"]))
        elif request["step"] == "read" and os.path.isdir(folder):
            # Changing the folder ourselves makes an NFS client forget its stale listing.
            mark = os.path.join(folder, f".{os.uname().nodename}-{os.getpid()}")
            with open(mark, "wb"):
                pass
            os.unlink(mark)
            hosts = sorted(name for name in os.listdir(folder) if not name.startswith("."))
        elif request["step"] == "clean":
            remove(folder)
    except OSError as error:
        raise unwritable(folder, error) from None
    return {"hosts": hosts}


def _write(workdir: str, folder: str, host: str) -> None:
    """Leave a name. A working folder whose code we would not run is refused here already."""
    trust.check_way(workdir, "trees")
    trust.check_way(workdir, "runs")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, host), "wb"):
        pass
