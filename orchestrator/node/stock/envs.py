"""Training environments on a node: made by uv from a complete lock, and complete when they have their name.

<workdir>/envs/<name>                   an environment; its lock.txt is what it was made from
<workdir>/envs/.making-<name>-<id>      one that is being made, and its log beside it
<workdir>/envs/.lock-<name>             held by whoever makes it; machines that share the folder wait for it
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

from ..base import locks, trust
from ..base.fault import NodeError
from ..base.paths import plain_name
from ..disk.removing import remove
from .pipconf import in_words_of_uv
from .trees import unwritable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List

    from ..serve.agent import Agent, Request

MAKING = ".making-"
LOCK = "lock.txt"
NO_INDEX = "no-index"  # the kind of an error: packages have to come another way
_WAIT = 1800.0  # seconds for another machine, or another launch, that makes the same environment
_LINES = 12  # of uv's words in an error
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


def look(_agent: Agent, request: Request) -> Dict[str, Any]:
    """Whether the environment is there and still runs, and what this machine is."""
    path = _path(request)
    trust.check_way(*os.path.split(os.path.dirname(path)))
    ready = _whole(path)
    if ready and os.access(path, os.W_OK):
        os.utime(path)  # `clean` takes none that a launch has just looked for
    if not ready:
        _check_room(os.path.dirname(path))  # before anything is sent that it has no room for
    return {
        "path": path,
        "ready": ready,
        "machine": os.uname().machine,
        "libc": _libc(),
    }


def find(_agent: Agent, request: Request) -> Dict[str, Any]:
    """The interpreter that fits `python` (a version or a program), by uv's own search."""
    wanted = str(request["python"])
    done = _uv(request, ["python", "find", os.path.expanduser(wanted)])
    if done.returncode < 0:
        raise _killed("uv", done.returncode)
    if done.returncode:
        raise _no_python(wanted, done.stderr)
    path = done.stdout.decode("utf-8", "surrogateescape").strip()
    code = "import sys; print(*sys.version_info[:3], sys.implementation.name)"
    said = _output([path, "-I", "-S", "-c", code]).split()
    if len(said) != 4:
        raise _no_python(wanted, b"%s does not run" % os.fsencode(path))
    return {"path": path, "version": ".".join(said[:3]), "implementation": said[3]}


def make(agent: Agent, request: Request) -> None:
    """Make the environment from the lock in the payload; at once where it is there."""
    path = _path(request)
    making = os.path.join(os.path.dirname(path), f"{MAKING}{os.path.basename(path)}-{os.urandom(6).hex()}")
    agent.rooms.setdefault("envs", {})[path] = making
    agent.in_child(request, lambda: _make(path, making, request), seconds=2 * 3600.0)


def progress(agent: Agent, request: Request) -> Dict[str, Any]:
    """How far `make` has come: the packages that are installed, and uv's last words."""
    making = agent.rooms.get("envs", {}).get(_path(request))
    if making is None:
        return {"packages": 0, "line": ""}
    lines = _read(making + ".log").split("\n")
    return {
        "packages": sum(1 for _ in _distributions(making)),
        "line": next((line.strip() for line in reversed(lines) if line.strip()), "")[:200],
    }


def _make(path: str, making: str, request: Request) -> Dict[str, Any]:
    began = time.monotonic()
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        trust.check_way(*os.path.split(folder))
        lock = os.path.join(folder, ".lock-" + os.path.basename(path))
        with locks.Held(lock, _WAIT, "env", "an environment that is being made"):
            _forget_dead(folder, os.path.basename(path), making)
            if _whole(path):
                return {"made": False, "path": path, "versions": {}, "seconds": time.monotonic() - began}
            versions = _build(path, making, request)
    except OSError as error:
        raise unwritable(folder, error) from None
    return {"made": True, "path": path, "versions": versions, "seconds": time.monotonic() - began}


def _build(path: str, making: str, request: Request) -> Dict[str, str]:
    python = str(request["interpreter"])
    try:
        os.mkdir(making, 0o700)
        _check_room(os.path.dirname(making))
        lock = os.path.join(making, LOCK + ".new")
        with open(lock, "wb") as file:
            file.write(request.payload)
        _step(
            request,
            making,
            [
                "venv",
                "--quiet",
                "--allow-existing",
                "--relocatable",
                "--no-project",
                "--python",
                python,
                making,
            ],
        )
        if request.get("ask_first"):
            _ask_index(request, making)
        install = [
            "pip",
            "install",
            "--no-deps",
            "--compile-bytecode",
            "--python",
            os.path.join(making, "bin", "python"),
        ]
        _step(request, making, [*install, *_sources(request, making), "--requirement", lock])
        versions = _check(making, request.payload)
        remove(os.path.join(making, ".cache"))
        os.rename(lock, os.path.join(making, LOCK))
        if os.path.lexists(path):  # it does not run any more: its interpreter was replaced, say
            os.rename(path, f"{making}.old")
            remove(f"{making}.old")
        os.rename(making, path)
    finally:
        remove(making)
        _unlink(making + ".log")
    return versions


def _ask_index(request: Request, making: str) -> None:
    """Look up one package, once: a whole installation asks a dead index for a minute before it gives up."""
    lines = request.payload.decode("utf-8", "replace").split("\n")
    pin = next((line.partition(";")[0].strip() for line in lines if "==" in line.partition(";")[0]), "")
    if not pin:
        return
    question = ["pip", "install", "--dry-run", "--no-deps", "--python", os.path.join(making, "bin", "python")]
    try:
        _step(request, making, [*question, *_sources(request, making), pin], UV_HTTP_RETRIES="0")
    except NodeError as error:
        if error.kind == NO_INDEX:
            raise
        # Anything else is for the installation to say: it knows which of the packages this machine needs.


def _sources(request: Request, making: str) -> List[str]:
    """Where uv takes packages from: an index of the user's, or a folder of wheels that was sent."""
    wheels, index = request.get("wheels"), request.get("index")
    if wheels:
        # A cache beside the environment, on the same file system: files are linked and not copied twice.
        folder = os.path.abspath(os.path.expanduser(wheels))  # uv takes `~` for a name
        return ["--no-index", "--find-links", folder, "--cache-dir", os.path.join(making, ".cache")]
    return ["--default-index", str(index)] if index else []


def _step(request: Request, making: str, arguments: List[str], **settings: str) -> None:
    with open(making + ".log", "ab") as log:
        done = _uv(request, arguments, log, **settings)
    if done.returncode < 0:
        raise _killed("uv", done.returncode)
    if done.returncode:
        raise _failed(arguments, _read(making + ".log"))


def _check(making: str, lock: bytes) -> Dict[str, str]:
    """Import what was installed: a file that is there proves nothing."""
    names = {line.partition("==")[0].strip().lower() for line in lock.decode("utf-8", "replace").split("\n")}
    modules = sorted({module for name, module in _IMPORTS.items() if name in names})
    done = subprocess.run(
        [os.path.join(making, "bin", "python"), "-c", _CHECK, *modules],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        check=False,
    )
    if done.returncode < 0:
        raise _killed("the import of what was installed", done.returncode)
    if done.returncode:
        raise NodeError(
            "env",
            "cannot import what was installed",
            _tail(done.stderr.decode("utf-8", "replace")),
            "change the packages under [env], then run `orchestrate setup`",
        )
    versions: Dict[str, str] = json.loads(done.stdout.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1])
    return versions


def _uv(
    request: Request, arguments: List[str], log: Any = subprocess.PIPE, **settings: str
) -> subprocess.CompletedProcess[bytes]:
    uv = os.path.expanduser(str(request["uv"]))
    return subprocess.run(
        [uv, *arguments],
        env={**environment(os.environ), **settings},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        cwd="/",  # uv reads the configuration of the project that it is called in
        check=False,
    )


def environment(login: Any) -> Dict[str, str]:
    """The login's environment, with what pip knows in the words of uv where uv was told nothing itself."""
    made = {**login, **in_words_of_uv(login)}
    made.update(UV_NO_PROGRESS="1", UV_PYTHON_DOWNLOADS="never", NO_COLOR="1")
    made.pop("VIRTUAL_ENV", None)
    return made


def _forget_dead(folder: str, name: str, ours: str) -> None:
    """What an interrupted build left: nobody is at it, since we hold its lock."""
    for entry in os.listdir(folder):
        path = os.path.join(folder, entry)
        if entry.startswith(f"{MAKING}{name}-") and not path.startswith(ours):
            _unlink(path) if entry.endswith(".log") else remove(path)


def _whole(path: str) -> bool:
    return os.path.isfile(os.path.join(path, LOCK)) and _runs(os.path.join(path, "bin", "python"))


def _runs(python: str) -> bool:
    return _output([python, "-I", "-S", "-c", "print(1)"]).strip() == "1"


def _output(argv: List[str]) -> str:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace")


def _distributions(making: str) -> Iterator[str]:
    lib = os.path.join(making, "lib")
    for version in _names(lib):
        for name in _names(os.path.join(lib, version, "site-packages")):
            if name.endswith(".dist-info"):
                yield name


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _check_room(folder: str) -> None:
    there = folder
    while not os.path.isdir(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    room = os.statvfs(there)
    free = room.f_bavail * room.f_frsize
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


def _failed(arguments: List[str], log: str) -> NodeError:
    lowered = log.lower()

    def says(*words: str) -> bool:
        return any(word in lowered for word in words)

    what = f"cannot make the environment: `uv {arguments[0]}` failed"
    hint = "mend what uv says, then run `orchestrate setup`"
    kind = "env"
    if says("no space left", "disk quota"):
        hint = "make room there (`orchestrate clean`), or set `workdir` to another disk"
    elif says("no wheels with a matching", "no source distribution", "only has wheels"):
        hint = 'set `python = "3.12"` under [env], or other versions of the packages'
    elif says("error sending request", "failed to fetch", "dns error", "client error (connect)", "timed out"):
        kind, hint = NO_INDEX, 'set `via = "controller"` under [env]: this machine then sends the packages'
    return NodeError(kind, what, _tail(log), hint)


def _killed(what: str, returncode: int) -> NodeError:
    """It has said nothing of it: whoever ended it did not ask."""
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = "signal %d" % -returncode
    return NodeError(
        "env",
        "cannot make the environment: %s was killed by %s" % (what, name),
        "SIGKILL is `kill -9` or the kernel's out-of-memory killer" if name == "SIGKILL" else "",
        "`dmesg -T | grep -i oom` there; then run `orchestrate setup` again",
    )


def _no_python(wanted: str, stderr: bytes) -> NodeError:
    return NodeError(
        "no-python",
        f"has no Python that fits {wanted!r}",
        _tail(stderr.decode("utf-8", "replace"), 2),
        "set `python` under [env] to one that is there; or install it (`apt install python3`); or let uv do "
        "it there: `uv python install`",
    )


def _tail(text: str, lines: int = _LINES) -> str:
    return "\n".join([line.rstrip() for line in text.strip().split("\n") if line.strip()][-lines:])


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _path(request: Request) -> str:
    workdir = os.path.abspath(os.path.expanduser(str(request["workdir"])))
    return os.path.join(workdir, "envs", plain_name("environment", request["name"]))
