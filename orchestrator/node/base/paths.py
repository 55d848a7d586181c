"""Every path of a node's state folder, and the checks before it is trusted.

runs/<run>/run.json, keeper, stopped
runs/<run>/attempts/<attempt>/<slug>/lock, control, state.json, output.log, output.idx, report.jsonl
leases/<port>
code: the agent's compiled modules
site/<digest>/sitecustomize.py
standby/<key>-<random>: a task that was started ahead
"""

from __future__ import annotations

import os
import re
import stat
from typing import NamedTuple

from .fault import NodeError, reason

# Locks, FIFOs and atomic renames work on one machine only; a FUSE mount ends with its helper.
_REMOTE = (
    " 9p afs beegfs ceph cifs coda fuse fuseblk gfs2 gpfs lustre nfs nfs4 ocfs2 orangefs pvfs2 smb3 smbfs "
)
_NAME = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:%-]{0,199}", re.ASCII)  # hosts may be named by an IPv6 address
_SHOWN = 80  # characters of an invalid name
_LOCAL_FUSE = "fuse.fuse-overlayfs"  # the root of a rootless container: layers on a local disk


class _Inside:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: TaskFolder, _: object) -> str:
        return f"{folder.path}/{self._name}"


class _Task(NamedTuple):
    path: str
    run: str
    attempt: str
    slug: str


class TaskFolder(_Task):
    """The folder of one task of one attempt; `os.path` functions take it as a path."""

    __slots__ = ()

    lock = _Inside("lock")
    control = _Inside("control")
    state = _Inside("state.json")
    log = _Inside("output.log")
    idx = _Inside("output.idx")
    report = _Inside("report.jsonl")
    stacks = _Inside("stacks")  # with a dot and a pid: while a process of the task opens its dump
    crash = _Inside("crash.txt")  # a traceback of our own processes, if there was one

    def __fspath__(self) -> str:
        return self.path

    @property
    def task(self) -> str:
        """Return `worker/1` for the slug `worker-1`."""
        return "/".join(self.slug.rsplit("-", 1))


class Paths:
    """The layout below a state folder; builds paths and lists them, without other effects."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)

    def runs(self) -> list[str]:
        return _names(f"{self.root}/runs")

    def run(self, run: str) -> str:
        return f"{self.root}/runs/" + plain_name("run", run)

    def run_json(self, run: str) -> str:
        return f"{self.run(run)}/run.json"

    def keeper(self, run: str) -> str:
        return f"{self.run(run)}/keeper"

    def stopped(self, run: str) -> str:
        """Return the marker for a run that a user ended: nothing of it may be started any more."""
        return f"{self.run(run)}/stopped"

    def attempts(self, run: str) -> list[str]:
        return _names(f"{self.run(run)}/attempts")

    def attempt(self, run: str, attempt: str) -> str:
        return f"{self.run(run)}/attempts/" + plain_name("attempt", attempt)

    def task(self, run: str, attempt: str, task: str) -> TaskFolder:
        """Return the folder of a task, given as `worker/1` or `worker-1`."""
        slug = plain_name("task", task.replace("/", "-"))
        return TaskFolder(f"{self.attempt(run, attempt)}/{slug}", run, attempt, slug)

    def tasks(self, run: str, attempt: str | None = None) -> list[TaskFolder]:
        """Return the claimed tasks of one attempt, or of all."""
        labels = self.attempts(run) if attempt is None else [attempt]
        return [self.task(run, label, slug) for label in labels for slug in _names(self.attempt(run, label))]

    @property
    def leases(self) -> str:
        return f"{self.root}/leases"

    @property
    def standby(self) -> str:
        """The folder of tasks that were started ahead."""
        return f"{self.root}/standby"

    def site(self, digest: str) -> str:
        """Return the folder for the PYTHONPATH of tasks, in one version."""
        return f"{self.root}/site/{digest}"

    def lease(self, port: int) -> str:
        return f"{self.leases}/{int(port)}"


def absolute(path: str) -> str:
    """Return a path as its user writes it (`~/data`) as an absolute path."""
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):  # it would be a folder of that name in the current one
        raise NodeError("workdir", f"{path} names a user that this machine lacks", "", "give the full path")
    return os.path.abspath(expanded)


def free_bytes(folder: str) -> int:
    """Return the free bytes on the disk of a folder, which need not exist yet; raise OSError."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def open_root(path: str | None = None) -> Paths:
    """Create and check the state folder (default /var/tmp/orchestrate-<uid>); raise NodeError "state"."""
    root = absolute(path or f"/var/tmp/orchestrate-{os.getuid()}")
    if path:
        root = os.path.realpath(root)  # a user's own link is fine; anybody may create one in /var/tmp
    try:
        os.makedirs(os.path.dirname(root), exist_ok=True)
        make_private(root)
        _check(root)
        for name in ("runs", "leases"):
            make_private(f"{root}/{name}")
    except OSError as error:
        hint = "make room or set `state` to a folder on a local disk"
        raise NodeError("state", f"the state folder {root} cannot be used", reason(error), hint) from None
    return Paths(root)


def make_private(folder: str) -> None:
    """Create a folder and its missing parents for the owner alone (makedirs ignores the mode for parents)."""
    if not os.path.isdir(folder):
        make_private(os.path.dirname(folder))
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass


def filesystem(path: str) -> str:
    """Return the type of the file system that holds an existing path, as the kernel names it."""
    device = os.stat(path).st_dev
    mark = b"%d:%d" % (os.major(device), os.minor(device))
    with open("/proc/self/mountinfo", "rb") as file:
        mounts = [line.split(b" - ") for line in file if line.split()[2] == mark]
    return mounts[-1][-1].split()[0].decode("ascii", "replace") if mounts else "unknown"


def is_remote(kind: str) -> bool:
    """Return True if locks, FIFOs and renames are unreliable on a file system of this type."""
    return f" {kind} " in _REMOTE or (kind.startswith("fuse.") and kind != _LOCAL_FUSE)


def _check(root: str) -> None:
    """Raise NodeError unless the folder is ours, private, and on a disk of this machine."""
    status, local = os.lstat(root), "set `state` to a folder of your own on a local disk"
    if not stat.S_ISDIR(status.st_mode):
        what, why, hint = "is not a folder", "something else has its name", f"remove it, or {local}"
    elif status.st_uid != os.getuid():
        what, hint = "belongs to another user", f"have it removed, or {local}"
        why = f"it belongs to uid {status.st_uid}, we are uid {os.getuid()}: its owner could stop our tasks"
    elif status.st_mode & 0o077:
        what, hint = "is open to other users", f"chmod 700 {root}"
        why = f"its mode is {stat.S_IMODE(status.st_mode):03o}, it must be 700"
    elif is_remote(kind := filesystem(root)):
        what, hint = f"is on {kind}", local
        why = "locks and pipes between processes do not hold on network and FUSE file systems"
    else:
        return
    raise NodeError("state", f"the state folder {root} {what}", why, hint)


def plain_name(what: str, text: object) -> str:
    """Return a single, visible path component from any sender; raise NodeError."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise NodeError(
            "usage", f"not a name for a {what}: {ascii(text)[:_SHOWN]}", "it must be one plain file name"
        )
    return text


def _names(folder: str) -> list[str]:
    """Return sorted valid names, without hidden ones (claims in progress); none for a missing folder."""
    try:
        return sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name))
    except (FileNotFoundError, NotADirectoryError):
        return []
