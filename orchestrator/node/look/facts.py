"""Facts of this machine for preflight, and whether what trains can be imported; runs in a child.

The controller's own programs (`ask` of its checks) are run here, too, and their output goes back as it is.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import struct
from typing import Any, Iterator

from ..base import procs, program
from ..base.fault import NodeError, reason
from ..base.lenient import listed
from ..base.paths import absolute, free_bytes
from ..base.program import run_program
from ..serve.agent import Agent, Request
from . import question

_SIOCGIFADDR = 0x8915
_OUTPUT = 20_000  # characters of one program
_IMPORTING = 170.0  # seconds; a first import from a network file system takes a minute

# Any Python can run it, so that an old one can be named. It reads the names of the folders that pip
# leaves beside each package: importlib.metadata would cost four times the rest of the question.
_PYTHON = """
import os, sys
def plain(name):
    return name.lower().replace("-", "_").replace(".", "_")
versions = dict((plain(name), "") for name in sys.argv[2:])
for folder in sys.path:
    try:
        entries = os.listdir(folder or ".")
    except OSError:
        continue
    for entry in entries:
        stem, _, kind = entry.rpartition(".")
        name, _, version = stem.partition("-")
        if kind in ("dist-info", "egg-info") and versions.get(plain(name)) == "":
            versions[plain(name)] = version.partition("-")[0]
stays = getattr(sys, "base_prefix", sys.prefix) == sys.prefix and os.path.exists(
    os.path.join(os.path.dirname(os.__file__), "EXTERNALLY-MANAGED")
)
words = [sys.executable, sys.version.split()[0], "1" if stays else ""]
words += [versions[plain(name)] for name in sys.argv[2:]]
os.write(1, (sys.argv[1] + "\\0".join(words) + sys.argv[1]).encode("utf-8", "surrogateescape"))
"""
# A file that is there proves nothing: modules are imported as by a task. Each answer is written at once: what
# ends the process (an instruction that this processor lacks, say) is known by what came before.
_IMPORT = """
import gc, importlib, json, os, sys
gc.disable()  # it takes a fifth of an import, for nothing: the process ends soon
def write(part):
    os.write(1, (sys.argv[1] + json.dumps(part) + sys.argv[1]).encode("utf-8"))
for name in sys.argv[3:]:
    write({"importing": name})
    try:
        version = str(getattr(importlib.import_module(name), "__version__", "") or "")
        write({"importing": "", "module": {"name": name, "version": version, "error": ""}})
    except BaseException as error:
        text = type(error).__name__ + (": " + str(error).strip() if str(error).strip() else "")
        write({"importing": "", "module": {"name": name, "version": None, "error": text}})
        break
gpus = sys.argv[2] == "gpus"
"""
_R = """
mark <- commandArgs(TRUE)[1]
version <- function(name) tryCatch(as.character(packageVersion(name)), error = function(e) "-")
cat(mark, paste(getRversion(), version("reticulate"), version("jsonlite")), mark, sep = "")
"""


def facts(agent: Agent, request: Request) -> dict[str, Any]:
    python, setup, state = request["python"], request.get("setup"), agent.state
    return {
        **_python(python, setup, list(request.get("packages") or ())),
        "r": _r(python, setup) if request.get("r") else None,
        "disk": {
            "state": {"free": free_bytes(state)} if state else None,
            "workdir": _workdir(request["workdir"]),
        },
        "gpus": _gpus(),
        "addresses": _addresses(),
        "answers": {
            name: (run_program(argv) or "")[:_OUTPUT]
            for name, argv in (request.get("programs") or {}).items()
        },
    }


def imports(_agent: Agent, request: Request) -> dict[str, Any]:
    """Import the modules up to the first that fails; `ended` is "" where the process came to a good end."""
    gpus, probe = "gpus" if request.get("gpus") else "-", str(request.get("probe") or "")
    python, modules = str(request["python"]), list(map(str, request["modules"]))
    answer = question.ask(
        lambda mark: [python, "-c", _IMPORT + probe, mark, gpus, *modules],
        python,
        request.get("setup"),
        {**request["env"], "TF_CPP_MIN_LOG_LEVEL": "3"},
        _IMPORTING,
    )
    reply: dict[str, Any] = {
        "modules": [],
        "gpus": None,
        "built": "",
        "importing": "",
        "ended": answer.ended,
        "signal": answer.signal,
    }
    for part in answer.parts:
        try:
            fields = json.loads(part)
        except ValueError:
            continue
        reply["modules"] += [fields.pop("module")] if "module" in fields else []
        reply.update(fields)
    return reply


def _python(python: str, setup: str | None, packages: list[str]) -> dict[str, Any]:
    """Ask the training Python what it is and what is installed in it; nothing big is imported."""
    answer = question.ask(lambda mark: [python, "-c", _PYTHON, mark, *packages], python, setup)
    path, version, managed, *versions = answer.fields or ["", "", "", *packages]
    return {
        "python": {
            "path": path or None,
            "version": version or None,
            "ok": answer.fields is not None,
            "error": answer.why,
            "managed": bool(managed),
        },
        "setup": answer.setup,
        "packages": {
            name: version if answer.fields and version else None
            for name, version in zip(packages, versions)  # noqa: B905
        },
    }


def _r(python: str, setup: str | None) -> dict[str, Any]:
    """Ask R for its version and those of its packages; without R only `error` is set."""
    answer = question.ask(lambda mark: ["Rscript", "-e", _R, mark], python, setup)
    version, *packages = (answer.fields or ["- - -"])[0].split(" ")
    reticulate, jsonlite = (None if each == "-" else each for each in (*packages, "-", "-")[:2])
    return {
        "version": None if answer.fields is None else version,
        "reticulate": reticulate,
        "jsonlite": jsonlite,
        "error": answer.why,
    }


def _workdir(path: str) -> dict[str, Any]:
    """Make the working folder if that can be done; writable is what a written file proves."""
    path, error = absolute(path), ""
    proof = os.path.join(path, f".orchestrate-{os.uname().nodename}-{os.getpid()}")
    try:
        os.makedirs(path, exist_ok=True)
        with open(proof, "xb") as file:
            try:
                file.write(b"\n" * 4096)
                file.flush()
            finally:
                os.unlink(proof)
    except OSError as trouble:
        error = reason(trouble)
    return {"path": path, "writable": not error, "error": error, "free": free_bytes(path)}


def _gpus() -> list[dict[str, Any]]:
    rows = program.ask_nvidia("--query-gpu=index,name", program.AWAKE) or ()
    return [{"index": int(index), "name": name} for index, name in rows if index.isdigit()]


def _addresses() -> list[dict[str, str]]:
    """Every address of this machine, loopback included, as the kernel's own tables list them.

    `name` is that of the interface; "" where it carries several, and this is not its first one.
    """
    names = _first_addresses()
    addresses: dict[str, str] = {}
    address = ""
    for line in procs.text("/proc/net/fib_trie").splitlines():
        fields = line.split()
        if "|--" in fields:
            address = fields[-1]
        elif fields[:1] == ["/32"] and fields[-1] == "LOCAL":
            addresses[address] = names.get(address, "")
    for line in procs.text("/proc/net/if_inet6").splitlines():
        digits, *_, name = line.split()
        addresses[socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))] = name
    return [{"ip": ip, "name": addresses[ip]} for ip in sorted(addresses)]


def _first_addresses() -> dict[str, str]:
    """The interface of each IPv4 address that is the first one of an interface."""
    names = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", os.fsencode(name)[:15]))
            except OSError:
                continue  # it has none
            names[socket.inet_ntoa(reply[20:24])] = name
    return names


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
