"""What a validation depends on, in parts, each as one digest: machine, devices, Python, packages, data.

What is compared are names, sizes and times of files, no contents: all of it costs one start of Python.
"""

from __future__ import annotations

import hashlib
import os

from ..base import procs
from ..base.annotations import Any, Iterator
from ..base.fault import NodeError
from ..base.lenient import listed
from ..serve.agent import Agent, Request
from . import question

# Run by the training Python in the job's own environment: MARK, how many of each kind, folders of data. Of a
# package it takes what an installer writes and `__init__.py`; the time of its folder says nothing, since a
# first import writes into it.
_QUESTION = """
import hashlib, os, sys
MOST = 20000
def stat(path):
    try:
        found = os.stat(path)
    except OSError:
        return "-"
    return "%d %d" % (found.st_size, found.st_mtime_ns)
def digest(lines):
    return hashlib.sha256("\\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
def entries(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
def python():
    real = os.path.realpath(sys.executable)
    for path in (sys.executable, real, os.path.join(sys.prefix, "pyvenv.cfg"),
                 os.path.join(sys.prefix, "conda-meta", "history")):
        yield path
        yield stat(path)
    yield sys.version
def packages():
    for folder in sys.path:
        if not folder:
            continue
        yield folder
        if not os.path.isdir(folder):
            yield stat(folder)
        for name in entries(folder):
            path = os.path.join(folder, name)
            if name == "__pycache__" or name.endswith(".pyc"):
                continue
            yield name
            if not os.path.isdir(path):
                yield stat(path)
            elif name.endswith("-info"):
                yield stat(os.path.join(path, "RECORD")) + stat(os.path.join(path, "METADATA"))
            else:
                yield stat(os.path.join(path, "__init__.py"))
def environment():
    for name in sorted(os.environ):
        if name.startswith(("SSH_", "XDG_SESSION", "XDG_RUNTIME", "DBUS_", "ORCHESTRATE_")):
            continue
        if name not in ("_", "PWD", "OLDPWD", "SHLVL", "KRB5CCNAME", "INVOCATION_ID", "JOURNAL_STREAM"):
            yield name + "=" + os.environ[name]
def data(paths):
    left = MOST
    for path in paths:
        path = os.path.expanduser(os.path.expandvars(path))
        yield path
        yield stat(path) if os.path.isfile(path) else str(os.path.isdir(path))
        for folder, below, names in os.walk(path):
            below.sort()
            yield os.path.relpath(folder, path)
            for name in sorted(names):
                left -= 1
                if left < 0:
                    yield repr(os.urandom(16))
                    return
                yield name + " " + stat(os.path.join(folder, name))
mark, paths = sys.argv[1], sys.argv[2:]
said = [digest(environment())]
os.environ.setdefault("TFDS_DATA_DIR", "~/tensorflow_datasets")
said += [digest(python()), digest(packages()), digest(data(paths))]
os.write(1, (mark + "\\0".join(said) + mark).encode())
"""


def fingerprint(_agent: Agent, request: Request) -> dict[str, Any]:
    """The parts of this host's state; two equal answers mean that nothing has changed that we look at.

    Raise NodeError when the training Python does not answer.
    """
    paths: list[str] = list(request.get("data") or ())
    fields, why = question.ask(
        lambda mark: [request["python"], "-c", _QUESTION, mark, *paths],
        request["python"],
        request.get("setup"),
        request.get("env") or {},
    )
    if fields is None or len(fields) != 4:
        raise NodeError("python", "the training Python does not answer", why)
    environment, python, packages, data = fields
    return {
        "machine": _digest(_machine()),
        "devices": _digest(devices("/")),
        "python": python,
        "packages": packages,
        "environment": environment,
        "data": data,
    }


def _machine() -> Iterator[str]:
    yield procs.incarnation()
    yield from os.uname()
    yield str(os.getuid())
    yield repr(sorted(os.sched_getaffinity(0)))
    yield str(_memory())
    yield _stat("/etc/ld.so.cache")


def _memory() -> int:
    """Bytes that this login may use: the machine's, or less in a container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = procs.text("/sys/fs/cgroup/memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def devices(root: str) -> Iterator[str]:
    """The accelerators below `root`, and their driver, as the kernel shows them."""
    for folder in ("dev", "dev/dri", "dev/accel", "dev/vfio", "proc/driver/nvidia/gpus"):
        for name in sorted(listed(os.path.join(root, folder))):
            if folder != "dev" or name.startswith(("nvidia", "kfd", "accel", "apex", "tpu")):
                yield folder + "/" + name
                if folder.startswith("proc"):
                    yield procs.text(os.path.join(root, folder, name, "information"))
    yield procs.text(os.path.join(root, "proc/driver/nvidia/version"))


def _stat(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return "-"
    return "%d %d" % (found.st_size, found.st_mtime_ns)


def _digest(lines: Iterator[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
