"""Training environments on a node: made by uv from a complete lock, and complete when they have their name.

<workdir>/envs/<name>                   an environment; its lock.txt is what it was made from
<workdir>/envs/.making-<name>-<id>      one that is being made, and its log beside it
<workdir>/envs/.lock-<name>             held by whoever makes it; machines that share the folder wait for it
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import Any, Iterator

from ..base import locks, trust
from ..base.fault import NodeError, unwritable
from ..base.lenient import discard, listed, text, touch
from ..base.paths import absolute, free_bytes, plain_name
from ..base.program import output, run_program
from ..disk.removing import remove
from ..serve.agent import Agent, Request
from . import uv

MAKING = ".making-"
_CACHE = ".cache"  # in it, of wheels that were sent
_IMPORTING = "import"  # in the log, once uv is done
LOCK = "lock.txt"
_SECONDS = 30.0  # for a Python to start, from a cold disk
_WAIT = 1800.0  # seconds for another machine, or another launch, that makes the same environment
_MINIMUM = 400e6  # bytes free; TensorFlow alone needs more
# What is imported before an environment counts as made, by the distribution that brings it.
_IMPORTS = {
    "tensorflow": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "tf-keras": "tf_keras",
    "tensorflow-datasets": "tensorflow_datasets",
    "numpy": "numpy",
    "keras": "keras",
}
_CHECK = """
import importlib, json, sys
versions = {"python": sys.version.split()[0]}
for name in sys.argv[1:]:
    versions[name] = str(getattr(importlib.import_module(name), "__version__", ""))
print("\\n" + json.dumps(versions))
"""


def look(_agent: Agent, request: Request) -> dict[str, Any]:
    """Look whether the environment is there and still runs, and what this machine is."""
    path = _path(request)
    trust.check_way(*os.path.split(os.path.dirname(path)))
    ready = _whole(path)
    if ready:
        touch(path)
    else:
        _check_room(os.path.dirname(path))  # before anything is sent that it has no room for
    return {
        "path": path,
        "ready": ready,
        "machine": os.uname().machine,
        "libc": _libc(),
    }


def find(_agent: Agent, request: Request) -> dict[str, Any]:
    """Find the interpreter that fits `python` (a version or a program), by uv's own search."""
    python = str(request["python"])
    done = uv.call(request, ["python", "find", os.path.expanduser(python)])
    if done.returncode:
        raise uv.no_python(request, python, done.stderr)
    path = done.stdout.decode("utf-8", "surrogateescape").strip()
    code = "import sys; print(*sys.version_info[:3], sys.implementation.name)"
    answer = (run_program([path, "-I", "-S", "-c", code], _SECONDS) or "").split()
    if len(answer) != 4:
        raise uv.no_python(request, python, b"%s does not run" % os.fsencode(path))
    return {"path": path, "version": ".".join(answer[:3]), "implementation": answer[3]}


def make(agent: Agent, request: Request) -> None:
    """Make the environment from the lock in the payload; at once where it is there."""
    path = _path(request)
    making = os.path.join(os.path.dirname(path), f"{MAKING}{os.path.basename(path)}-{os.urandom(6).hex()}")
    agent.rooms.setdefault("envs", {})[path] = making
    agent.in_child(request, lambda: _make(path, making, request), seconds=2 * 3600.0)


def progress(agent: Agent, request: Request) -> dict[str, Any]:
    """Say how far `make` has come: the step, and its bytes or packages."""
    making = agent.rooms.get("envs", {}).get(_path(request))
    if making is None:
        return {"step": "", "done": 0}
    log = text(making + ".log") or ""
    installed = sum(1 for _ in _distributions(making))
    if log.startswith(_IMPORTING):
        return {"step": "import", "done": 0}
    if installed or os.path.isdir(os.path.join(making, _CACHE)):
        return {"step": "unpack", "done": installed}
    return {"step": "fetch", "done": _written(making)}


def _written(making: str) -> int:
    """Return the bytes that uv has written by now: what it fetches, unpacked."""
    fields = (text(f"/proc/{text(making + '.pid') or '0'}/io") or "").split()
    return int(fields[fields.index("wchar:") + 1]) if "wchar:" in fields else 0


def _make(path: str, making: str, request: Request) -> dict[str, Any]:
    began = time.monotonic()
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        trust.check_way(*os.path.split(folder))
        lock = os.path.join(folder, ".lock-" + os.path.basename(path))
        with locks.Held(lock, _WAIT, "env", "an environment that is being made"):
            _forget_dead(folder, os.path.basename(path))
            made = not _whole(path)
            versions = _build(path, making, request) if made else {}
    except OSError as error:
        raise unwritable(folder, error) from None
    return {"made": made, "path": path, "versions": versions, "seconds": time.monotonic() - began}


def _build(path: str, making: str, request: Request) -> dict[str, str]:
    try:
        os.mkdir(making, 0o700)
        _check_room(os.path.dirname(making))
        lock = os.path.join(making, LOCK + ".new")
        with open(lock, "wb") as file:
            file.write(request.payload)
        shape = ["--quiet", "--allow-existing", "--relocatable", "--no-project"]
        _step(request, making, ["venv", *shape, "--python", str(request["interpreter"]), making])
        install = ["pip", "install", "--no-deps", "--python", _python(making)]
        if request.get("wheels"):  # checked when they were downloaded; what was built of a source has another
            install.append("--no-verify-hashes")
        # Where there is another way, a dead index is asked once, and not for a minute.
        settings = {"UV_HTTP_RETRIES": "0"} if request.get("ask_first") else {}
        _step(request, making, [*install, *_sources(request, making), "--requirement", lock], **settings)
        versions = _check(making, request.payload, path)
        remove(os.path.join(making, _CACHE))
        os.rename(lock, os.path.join(making, LOCK))
        if os.path.lexists(path):  # it does not run any more: its interpreter was replaced, say
            os.rename(path, f"{making}.old")
            remove(f"{making}.old")
        os.rename(making, path)
    finally:
        remove(making)
        discard(making + ".log")
        discard(making + ".pid")
    return versions


def _sources(request: Request, making: str) -> list[str]:
    """Tell uv where packages come from: an index of the user's, or a folder of wheels that was sent."""
    wheels, index = request.get("wheels"), request.get("index")
    if wheels:
        # A cache beside the environment, on the same file system: files are linked and not copied twice.
        folder = absolute(wheels)  # uv takes `~` for a name
        return ["--no-index", "--find-links", folder, "--cache-dir", os.path.join(making, _CACHE)]
    return ["--default-index", str(index)] if index else []


def _step(request: Request, making: str, arguments: list[str], **settings: str) -> None:
    with open(making + ".log", "wb") as log:  # what an earlier step said is not said again
        done = uv.call(request, arguments, log, making + ".pid", **settings)
    if done.returncode:
        raise uv.failed(arguments, text(making + ".log") or "")


def _check(making: str, lock: bytes, path: str) -> dict[str, str]:
    """Import what was installed, and so compile it: a file that is there proves nothing.

    Files are named as they would lie in `path`: equal errors of several hosts are shown once.
    """
    with open(making + ".log", "w", encoding="ascii") as log:
        log.write(_IMPORTING)
    names = {line.partition("==")[0].strip().lower() for line in lock.decode("utf-8", "replace").split("\n")}
    modules = sorted({module for name, module in _IMPORTS.items() if name in names})
    done = subprocess.run(
        [_python(making), "-c", _CHECK, *modules],
        env={**uv.compiling(os.environ), "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd="/",
        check=False,
    )
    if done.returncode < 0:
        raise uv.killed("the import of what was installed", done.returncode)
    if done.returncode:
        raise NodeError(
            "env",
            "cannot import what was installed",
            uv.tail(done.stderr.decode("utf-8", "replace").replace(making, path)),
            "change the packages under [env], then run `orchestrate setup`",
        )
    versions: dict[str, str] = json.loads(done.stdout.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1])
    return versions


def _forget_dead(folder: str, name: str) -> None:
    """Remove what an interrupted build left: nobody is at it, since we hold its lock."""
    for entry in os.listdir(folder):
        path = os.path.join(folder, entry)
        if entry.startswith(f"{MAKING}{name}-"):
            discard(path) if entry.endswith((".log", ".pid")) else remove(path)


def _whole(path: str) -> bool:
    return os.path.isfile(os.path.join(path, LOCK)) and _runs(_python(path))


def _runs(python: str) -> bool:
    """Start a Python; raise NodeError when it does not answer: a slow disk condemns no environment."""
    try:
        return output([python, "-I", "-S", "-c", "print(1)"], _SECONDS).strip() == "1"
    except subprocess.TimeoutExpired:
        raise NodeError(
            "env",
            "has an environment whose Python does not answer",
            f"{python} did not start within {_SECONDS:g} s: its disk hangs, or the machine is very busy",
            "look at the load of that machine and at its disk, then try again",
        ) from None
    except (OSError, subprocess.SubprocessError):
        return False


def _distributions(making: str) -> Iterator[str]:
    lib = os.path.join(making, "lib")
    for version in listed(lib):
        for name in listed(os.path.join(lib, version, "site-packages")):
            if name.endswith(".dist-info"):
                yield name


def _check_room(folder: str) -> None:
    free = free_bytes(folder)
    if free < _MINIMUM:
        raise NodeError(
            "env",
            "has no room for an environment",
            f"{free / 1e6:.0f} MB are free at {folder}, and it takes {_MINIMUM / 1e6:.0f} at least",
            "make room there (`orchestrate clean`), or set `workdir` to another disk",
        )


def _libc() -> str:
    """`glibc 2.36`; "" for another C library."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""


def _python(environment: str) -> str:
    return os.path.join(environment, "bin", "python")


def _path(request: Request) -> str:
    return os.path.join(absolute(request["workdir"]), "envs", plain_name("environment", request["name"]))
