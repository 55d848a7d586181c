"""A run's own working folder, created from its tree: nothing that a script writes there is ever deleted.

<workdir>/runs/<run>/work, and trees: the digests that it was created from, and of its data; and users: the
    runs that have continued in it
<workdir>/.share-<nonce>/<host>: hosts with the same working folder each write their name, then all look
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from io import FileIO

from ..base import lenient, procs, trust
from ..base.descriptors import write_all
from ..base.fault import unwritable
from ..base.paths import absolute, plain_name
from ..disk.listing import walk
from ..disk.removing import remove
from ..serve.agent import Agent, Request
from ..serve.frames import Json
from ..task import environ
from . import notes

_CHUNK = 1 << 20


def make(agent: Agent, request: Request) -> Json:
    """Copy a tree once per run, even if all hosts that share the folder ask; report what is missing."""
    workdir, run = absolute(request["workdir"]), run_folder(request["workdir"], request["run"])
    work = f"{run}/work"
    digests = [request["digest"], *request.get("also", ())]
    reply: Json = {"work": work, "missing": [], "made": False}
    if request.get("needs") is not None:
        reply["had"] = _have(request["needs"])
        if not (request.get("makes", True) and reply["had"]["program"]):
            return reply
    trust.check_way(workdir, "trees")
    trust.check_way(workdir, "runs", os.path.basename(run), "work")
    user = plain_name("run", request["user"]) if request.get("user") else ""
    exists = os.path.isdir(work)
    existing = exists and (not user or user in users(run))  # and it no longer depends on a tree
    trees = {digest: f"{workdir}/trees/{digest}" for digest in digests}
    for tree in trees.values():
        lenient.touch(tree)  # a recently used tree is not cleaned
    reply["missing"] = [
        digest
        for digest, tree in trees.items()
        if not trust.is_ours(tree) or notes.is_unchanged(agent.state, tree) is False
    ]
    if reply["missing"] or existing:
        return reply
    made = f"{work}.{os.uname().nodename}.{os.urandom(6).hex()}"
    try:
        os.makedirs(run, exist_ok=True)
        with open(f"{run}/trees", "a" if exists else "w", encoding="utf-8") as file:
            file.write("".join(f"{digest}\n" for digest in [*digests, *request.get("data", ())]))
        _lay(trees[digests[0]], work if exists else made, new=not exists)
        if not exists:
            os.rename(made, work)
            reply["made"] = True
        if user:
            with open(f"{run}/users", "a", encoding="utf-8") as file:
                file.write(user + "\n")
    except OSError as error:
        remove(made)
        reply["missing"] = [digest for digest in digests if not os.path.isdir(trees[digest])]
        if not reply["missing"] and (exists or not os.path.isdir(work)):
            raise unwritable(work, error) from None
    return reply


def _lay(tree: str, work: str, *, new: bool) -> None:
    """Copy a tree into a folder; an existing one gets each file at once: hosts may share it."""
    folders = {work}
    os.makedirs(work, exist_ok=True)
    for path, item in walk(tree, bool):
        to, name = os.path.split(f"{work}/{path}")
        if to not in folders:
            folders.add(to)
            os.makedirs(to, exist_ok=True)  # where a task made it a link, that is where its files are
        made = f"{to}/{name}" if new else f"{to}/.orchestrate-{os.urandom(6).hex()}"
        _copy(item, made)
        try:
            if not new:
                os.replace(made, f"{to}/{name}")
        except OSError:
            os.unlink(made)
            raise


def _copy(item: os.DirEntry[str], target: str) -> None:
    """Copy a file or link; for small files, of which there are many, `shutil` takes several times as long."""
    if item.is_symlink():
        os.symlink(os.readlink(item.path), target)
        return
    with FileIO(item.path) as file, FileIO(target, "x") as copy:
        status = os.fstat(file.fileno())
        while data := file.read(_CHUNK):
            write_all(copy.fileno(), data)
        os.fchmod(copy.fileno(), stat.S_IMODE(status.st_mode))
        os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))


def users(folder: str) -> list[str]:
    """Return the runs that have continued in a run's folder."""
    return procs.text(f"{folder}/users").split()


# Names of what belongs to one task: rank_0, worker-1, __0_0.distcp. Logs are read by nobody who trains.
_OWNED = r"(?i)(^|[-_.])(rank|worker|task|replica|shard|node|proc(ess)?)[-_.=]?\d+($|[-_.])|^__\d+_\d+\."
_LOG = r"(?i)log|tensorboard|tfevents|profil|\.orchestrate"
_SHOWN, _MOST = 3, 200_000  # names that are reported, and that are read


def look(agent: Agent, request: Request) -> Json:
    """Tell whether a folder is there, which living runs use it, and some files of single tasks in it."""
    from . import clean  # only here: it imports a fifth of what an agent imports for a launch

    workdir, folder = absolute(request["workdir"]), run_folder(request["workdir"], request["run"])
    trust.check_way(workdir, "runs", os.path.basename(folder), "work")
    others = {os.path.basename(folder), *users(folder)} - {request["user"]}
    work = f"{folder}/work"
    digests = procs.text(f"{folder}/trees").split()
    owned: list[str] = []
    remaining = _MOST
    for path, folders, files in os.walk(work):
        below = os.path.relpath(path, work)
        folders[:] = [name for name in folders if not re.search(_LOG, name)]
        for name in (*folders, *files):
            item, remaining = os.path.normpath(os.path.join(below, name)), remaining - 1
            sent = any(os.path.lexists(f"{workdir}/trees/{digest}/{item}") for digest in digests)
            if re.search(_OWNED, name) and not re.search(_LOG, name) and not sent:
                owned.append(item)
        if len(owned) >= _SHOWN or remaining < 0:
            break
    using = sorted(others & clean.alive(agent.paths))
    return {"there": os.path.isdir(work), "alive": using, "owned": owned[:_SHOWN]}


def _have(needs: Json) -> Json:
    """Return which of a job's needs exist here; without a setup and paths, PATH alone decides."""
    if needs.get("setup") or needs["paths"]:
        from ..look import facts  # it imports `subprocess`, which most jobs do not need

        return facts.have(needs)
    command, env = environ.of_task({"argv": [needs["program"]], "python": needs["python"]}, {})
    program = shutil.which(os.fsdecode(command[0]), path=os.fsdecode(env[b"PATH"]))
    return {"program": program is not None, "paths": []}


def run_folder(workdir: str, run: str) -> str:
    return os.path.join(absolute(workdir), "runs", plain_name("run", run))


def share(_agent: Agent, request: Request) -> Json:
    """Do one step: `write` our name, `read` the names that this host sees, or `clean` up."""
    workdir = absolute(request["workdir"])
    folder = os.path.join(workdir, ".share-" + plain_name("nonce", request["nonce"]))
    hosts: list[str] = []
    try:
        if request["step"] == "write":
            _write(workdir, folder, plain_name("host", request["host"]))
        elif request["step"] == "read" and os.path.isdir(folder):
            # Changing the folder ourselves makes an NFS client drop its stale listing.
            mark = f"{folder}/.{os.uname().nodename}-{os.getpid()}"
            with open(mark, "wb"):
                pass
            os.unlink(mark)
            hosts = sorted(name for name in os.listdir(folder) if not name.startswith("."))
            if hosts == [request["host"]]:  # most clusters share nothing: no third step is needed
                remove(folder)
        elif request["step"] == "clean":
            remove(folder)
    except OSError as error:
        raise unwritable(folder, error) from None
    return {"hosts": hosts}


def _write(workdir: str, folder: str, host: str) -> None:
    """Write a name. A working folder whose code we would not run is refused here already."""
    trust.check_way(workdir, "trees")
    trust.check_way(workdir, "runs")
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/{host}", "wb"):
        pass
