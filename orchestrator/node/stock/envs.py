"""Training environments on a node, created by uv from a complete lock; the final name marks a complete one.

<workdir>/envs/<name>                 an environment; its lock.txt is what it was created from
<workdir>/envs/.making-<name>-<id>    one in progress
<workdir>/envs/.lock-<name>           held by its creator: machines that share the folder wait for it
"""

from __future__ import annotations

import glob
import json
import os

from ..base import locks, procs, trust
from ..base.fault import NodeError, unwritable
from ..base.lenient import touch
from ..base.paths import absolute, plain_name
from ..base.program import hear, run_program
from ..disk.removing import remove
from ..serve.agent import Agent, Request
from ..serve.frames import Json
from . import uv

MAKING = ".making-"
_CACHE = ".cache"  # in it, from wheels that were sent
LOCK = "lock.txt"
_SECONDS = 30.0  # for a Python to start, from a cold disk
_WAIT = 1800.0  # seconds for another machine, or another launch, that creates the same environment
# What is imported before an environment counts as complete, by the distribution that provides it.
_IMPORTS = {
    "tensorflow": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "tf-keras": "tf_keras",
    "tensorflow-datasets": "tensorflow_datasets",
    "numpy": "numpy",
    "keras": "keras",
    "torch": "torch",
    "jax": "jax",
}
# Backends of Keras 3, in order of preference; it reads a variable instead of checking what is installed.
_BACKENDS = ("tensorflow", "tensorflow-cpu", "jax", "torch")
_CHECK = """
import importlib, json, sys
versions = {"python": sys.version.split()[0]}
for name in sys.argv[1:]:
    versions[name] = str(getattr(importlib.import_module(name), "__version__", ""))
print("\\n" + json.dumps(versions))
"""


def look(_agent: Agent, request: Request) -> Json:
    """Check whether the environment exists and still runs, and describe this machine."""
    path = _path(request)
    trust.check_way(*os.path.split(os.path.dirname(path)))
    ready = _whole(path)
    if ready:
        touch(path)
        source = os.path.realpath(_python(path)).rsplit(os.sep, 3)[0]
        if os.path.dirname(source) == os.path.realpath(os.path.join(absolute(request["workdir"]), "data")):
            touch(source)  # its Python was sent
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        libc = ""  # another C library
    return {"ready": ready, "machine": os.uname().machine, "libc": libc}


def find(_agent: Agent, request: Request) -> Json:
    """Find the interpreter that fits `python` (a version or a program), by uv's own search."""
    python = str(request["python"])
    done = uv.call(request, ["python", "find", os.path.expanduser(python)])
    if done.status:
        raise uv.no_python(request, python, done.err)
    path = os.fsdecode(done.out).strip()
    code = "import sys; print(*sys.version_info[:3])"
    answer = (run_program([path, "-I", "-S", "-c", code], _SECONDS) or "").split()
    if len(answer) != 3:
        raise uv.no_python(request, python, b"%s does not run" % os.fsencode(path))
    return {"path": path, "version": ".".join(answer)}


def make(agent: Agent, request: Request) -> None:
    """Create the environment from the lock in the payload; return at once if it exists."""
    path = _path(request)
    making = f"{os.path.dirname(path)}/{MAKING}{os.path.basename(path)}-{os.urandom(6).hex()}"
    agent.in_child(request, lambda: _make(path, making, request), seconds=2 * 3600.0)


def progress(_agent: Agent, request: Request) -> Json:
    """Return the progress of `make`, by its running program: its step, and its bytes or packages."""
    sign = MAKING + os.path.basename(_path(request)) + "-"
    for pid in procs.pids():
        argv = procs.own_argv(pid)
        made = next((word for word in argv if sign in word), None)
        if made is None:
            continue
        if sign in argv[0]:
            return {"step": "import check", "done": 0}
        making = os.path.join(os.path.dirname(_path(request)), made[made.index(sign) :].split("/")[0])
        installed = len(glob.glob(f"{glob.escape(making)}/lib/*/site-packages/*.dist-info"))
        written = int(procs.facts(pid, "io").get(b"wchar", b"0"))  # what uv unpacks while it fetches
        return {"step": "install", "done": installed} if installed else {"step": "unpack", "done": written}
    return {"step": "", "done": 0}


def _make(path: str, making: str, request: Request) -> Json:
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        trust.check_way(*os.path.split(folder))
        lock = f"{folder}/.lock-{os.path.basename(path)}"
        with locks.held(lock, _WAIT, "an environment that is being made"):
            for entry in os.listdir(folder):  # left by an interrupted build: nobody works on it
                if entry.startswith(f"{MAKING}{os.path.basename(path)}-"):
                    remove(f"{folder}/{entry}")
            return {"versions": {} if _whole(path) else _build(path, making, request)}
    except OSError as error:
        raise unwritable(folder, error) from None


def _build(path: str, making: str, request: Request) -> dict[str, str]:
    try:
        os.mkdir(making, 0o700)
        lock = f"{making}/{LOCK}.new"
        with open(lock, "wb") as file:
            file.write(request.payload)
        shape = ["--quiet", "--allow-existing", "--relocatable", "--no-project"]
        _step(request, ["venv", *shape, "--python", str(request["interpreter"]), making])
        install = ["pip", "install", "--no-deps", "--python", _python(making), "--requirement", lock]
        wheels, index = request.get("wheels"), request.get("index")
        if wheels:
            # Hashes were checked at the download; packages built here have others. The cache is on the same
            # file system, so that files are linked and not copied. uv takes `~` literally.
            install += ["--no-verify-hashes", "--no-index", "--find-links", absolute(wheels)]
            install += ["--cache-dir", f"{making}/{_CACHE}"]
        elif index:
            install += ["--default-index", str(index)]
        # If there is another way, a dead index is tried once, and not for a minute.
        settings = {"UV_HTTP_RETRIES": "0"} if request.get("ask_first") else {}
        _step(request, install, **settings)
        versions = _check(making, request.payload, path)
        remove(f"{making}/{_CACHE}")
        os.rename(lock, f"{making}/{LOCK}")
        if os.path.lexists(path):  # it no longer runs, for example because its interpreter was replaced
            os.rename(path, f"{making}.old")
            remove(f"{making}.old")
        os.rename(making, path)
    finally:
        remove(making)
    return versions


def _step(request: Request, arguments: list[str], **settings: str) -> None:
    done = uv.call(request, arguments, **settings)
    if done.status:
        raise uv.failed(arguments, done.err.decode("utf-8", "replace"))


def _check(making: str, lock: bytes, path: str) -> dict[str, str]:
    """Import what was installed, which also compiles it: existing files prove nothing.

    Files are reported as they would be in `path`, so that equal errors of several hosts fold.
    """
    names = {line.partition("==")[0].strip().lower() for line in lock.decode("utf-8", "replace").split("\n")}
    modules = sorted({module for name, module in _IMPORTS.items() if name in names})
    argv = [_python(making), "-c", _CHECK, *modules]
    env = {**uv.compiling(os.environ), "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"}
    backend = next((name for name in _BACKENDS if name in names), "numpy")
    env["KERAS_BACKEND"] = "tensorflow" if backend.startswith("tensorflow") else backend
    done = uv.run("the import of the installed packages", argv, env)
    if done.status:
        raise NodeError(
            "env",
            "cannot import the installed packages",
            uv.tail(done.err.decode("utf-8", "replace").replace(making, path)),
            "change the packages under [env], then run `orchestrate setup`",
        )
    return dict(json.loads(done.text.strip().rsplit("\n", 1)[-1]))


def _whole(path: str) -> bool:
    """Start its Python; raise NodeError if it does not respond: a slow disk does not make it invalid."""
    python = _python(path)
    is_there = os.path.isfile(f"{path}/{LOCK}")
    output = hear([python, "-I", "-S", "-c", "print(1)"], _SECONDS) if is_there else None
    if output is not None and output.why:
        raise NodeError(
            "env",
            "has an environment whose Python does not answer",
            f"{python} did not start within {_SECONDS:g} s: its disk hangs, or the machine is very busy",
            "check that machine's load and disk, then try again",
        )
    return output is not None and not output.status and output.text.strip() == "1"


def _python(environment: str) -> str:
    return f"{environment}/bin/python"


def _path(request: Request) -> str:
    return os.path.join(absolute(request["workdir"]), "envs", plain_name("environment", request["name"]))
