"""A digest of what a validation depends on: machine, devices, Python, packages, environment.

What is compared are names, sizes and times of files, no contents: all of it costs one start of Python.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, Iterator

from ..base import procs
from ..base.fault import NodeError
from ..base.lenient import listed
from ..serve.agent import Agent, Request
from . import question

# Run by the training Python in the job's own environment. Of a package it takes what an installer writes and
# `__init__.py`; the time of its folder says nothing, since a first import writes into it.
_QUESTION = """
import hashlib, os, sys
def stat(path):
    try:
        about = os.stat(path)
        return "%d %d" % (about.st_size, about.st_mtime_ns)
    except OSError:
        return "-"
def python():
    for path in (sys.executable, os.path.realpath(sys.executable), os.path.join(sys.prefix, "pyvenv.cfg")):
        yield path + " " + stat(path)
    yield sys.version
    for folder in filter(None, sys.path):
        yield folder + " " + ("" if os.path.isdir(folder) else stat(folder))
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            if name.endswith("-info"):
                yield name + stat(os.path.join(path, "RECORD")) + stat(os.path.join(path, "METADATA"))
            elif name != "__pycache__" and not name.endswith(".pyc"):
                yield name + " " + stat(os.path.join(path, "__init__.py") if os.path.isdir(path) else path)
def environment():
    for name in sorted(os.environ):
        if name.startswith(("SSH_", "XDG_SESSION", "XDG_RUNTIME", "DBUS_", "ORCHESTRATE_")):
            continue
        if name not in ("_", "PWD", "OLDPWD", "SHLVL", "KRB5CCNAME", "INVOCATION_ID", "JOURNAL_STREAM"):
            yield name + "=" + os.environ[name]
whole = hashlib.sha256()
for lines in (python(), environment()):
    for line in lines:
        whole.update(line.encode("utf-8", "surrogateescape") + b"\\n")
os.write(1, (sys.argv[1] + whole.hexdigest() + sys.argv[1]).encode())
"""


def fingerprint(_agent: Agent, request: Request) -> dict[str, Any]:
    """Digest this host's state; two equal answers mean that nothing has changed that we look at.

    Raise NodeError when the training Python does not answer.
    """
    python = request["python"]
    answer = question.ask(
        lambda mark: [python, "-c", _QUESTION, mark], python, request.get("setup"), request.get("env")
    )
    if answer.fields is None:
        raise NodeError("python", "the training Python does not answer", answer.why)
    lines = [*answer.fields, *_machine(), *devices("/")]
    return {"digest": hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()}


def _machine() -> Iterator[str]:
    yield procs.incarnation()
    yield from os.uname()
    yield f"{os.getuid()} {sorted(os.sched_getaffinity(0))} {os.sysconf('SC_PHYS_PAGES')}"
    yield procs.text("/sys/fs/cgroup/memory.max")


def devices(root: str) -> Iterator[str]:
    """List the accelerators below `root`, and their driver, as the kernel shows them."""
    for folder in ("dev", "dev/dri", "dev/accel", "dev/vfio", "proc/driver/nvidia/gpus"):
        for name in sorted(listed(os.path.join(root, folder))):
            if folder != "dev" or name.startswith(("nvidia", "kfd", "accel", "apex", "tpu")):
                yield folder + "/" + name
    yield procs.text(os.path.join(root, "proc/driver/nvidia/version"))
