"""Facts of this machine for preflight, and whether what trains can be imported; runs in a child.

The controller's own programs (`ask` of its checks) run here too, and their output is returned unchanged.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from ..base import machine, network, procs
from ..base.fault import reason
from ..base.lenient import listed
from ..base.paths import absolute, free_bytes
from ..base.program import listen, run_program
from ..serve.agent import Agent, Request
from ..serve.frames import Json
from ..task import environ
from . import gpus

_OUTPUT = 20_000  # characters of one program
_IMPORTING = 290.0  # seconds; a first import from a busy network file system takes minutes

# Any Python can run it, so that an old one can be reported. It reads the names of the folders that pip
# creates next to each package: importlib.metadata would take four times as long as everything else. The
# state that it prints after the versions changes with each installation, because installers rewrite RECORD.
_PYTHON = """
import os, sys
def plain(name):
    return name.lower().replace("-", "_").replace(".", "_")
versions = dict((plain(name), "") for name in sys.argv[2:])
state = [os.path.realpath(sys.executable), sys.version]
has_pip = False
for folder in sys.path:
    try:
        entries = sorted(os.listdir(folder or "."))
    except OSError:
        continue
    state.append(folder)
    for entry in entries if folder else ():
        if entry.endswith(("-info", ".pth")):
            try:
                about = os.stat(os.path.join(folder, entry, "RECORD"))
                state.append("%s %s %s" % (entry, about.st_size, about.st_mtime))
            except OSError:
                state.append(entry)
    has_pip = has_pip or (folder and "pip" in entries)
    for entry in entries:
        stem, _, kind = entry.rpartition(".")
        name, _, version = stem.partition("-")
        if kind in ("dist-info", "egg-info") and versions.get(plain(name)) == "":
            versions[plain(name)] = version.partition("-")[0]
stays = getattr(sys, "base_prefix", sys.prefix) == sys.prefix and os.path.exists(
    os.path.join(os.path.dirname(os.__file__), "EXTERNALLY-MANAGED")
)
words = [sys.executable, sys.version.split()[0], "1" if stays or not has_pip else ""]
words += [versions[plain(name)] for name in sys.argv[2:]] + state
for name in sorted(os.environ) if sys.version_info > (3,) else ():
    own = name.startswith(("SSH_", "XDG_", "DBUS_", "JOURNAL_", "ORCHESTRATE_"))
    if not own and name not in ("_", "PWD", "OLDPWD", "SHLVL", "KRB5CCNAME", "INVOCATION_ID"):
        words.append(name + "=" + os.environ[name])
os.write(1, (sys.argv[1] + "\\0".join(words) + sys.argv[1]).encode("utf-8", "surrogateescape"))
"""
# An existing file proves nothing: modules are imported as by a task. Each result is written at once: if the
# process dies (of an unsupported instruction, for example), the earlier results show where.
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


# --- running a program in the job's own environment, and finding its answer in its output ---

_SECONDS = 45.0  # a cold network file system, and a user's setup
_WORDS, _LINES = 2000, 3  # characters of error output, from its last lines

# Not in this process: a hanging file system must not block it.
_HAVE = """
mark=$1 program=$2; shift 2; printf %s "$mark"; place=0
file() { [ -f "$1" ] && [ -x "$1" ]; }
there() {
    case $1 in */*) file "$1"; return ;; esac
    IFS=:; for at in $PATH; do file "$at/$1" && return; done; return 1
}
[ -z "$program" ] || (there "$program") || printf "program "
for path in "$@"; do [ -e "$path" ] || printf "%s " "$place"; place=$((place + 1)); done
printf %s "$mark"
"""


class Answer(NamedTuple):
    """Parts of a program's output, and how it ended."""

    parts: List[str]  # between marks
    ended: str  # why it failed; "" if it did not
    signal: Optional[int] = None  # that ended it, and was not ours
    setup: Optional[Dict[str, Any]] = (
        None  # {"status", "words"}: how the user's setup ended, and its error output
    )

    @property
    def fields(self) -> list[str] | None:
        """Return the fields, separated by NUL, of an answer of one part; None if there is none."""
        return self.parts[0].split("\0") if len(self.parts) == 1 else None

    @property
    def why(self) -> str:
        """Return why an answer has no fields; "" if it has some."""
        return "" if self.fields is not None else self.ended or "it printed nothing"


def ask(
    argv: Callable[[str], list[str]],
    python: str,
    setup: str | None,
    env: dict[str, str] | None = None,
    seconds: float = _SECONDS,
) -> Answer:
    """Run a program; its answer is its output between two marks, because a setup and profiles print too.

    `argv` builds its command line from the mark.
    """
    mark = os.urandom(8).hex()
    marked = f"{setup}\nprintf {mark}$?{mark} >&2" if setup else None
    spec = {"argv": argv(mark), "python": python, "setup": marked, "env": env or {}}
    command, whole = environ.of_task(spec, {})
    whole[b"PYTHONDONTWRITEBYTECODE"] = b"1"  # a check changes nothing
    home = os.path.expanduser("~")
    try:
        output = listen(command, whole, seconds, home if os.access(home, os.X_OK) else "/")
    except OSError as error:
        return Answer([], f"{os.fsdecode(command[0])}: {error.strerror or error}")
    errors = output.err.decode("utf-8", "replace").split(mark)
    messages = "".join(errors[::2]).strip()[-_WORDS:]
    last = " / ".join([line.strip() for line in messages.split("\n") if line.strip()][-_LINES:])
    ended = output.why or output.killed
    if output.status and not ended:
        ended = last or f"it ended with {output.status}"
    parts = output.out.decode("utf-8", "surrogateescape").split(mark)
    # A setup that ended its shell has that status.
    status = errors[1] if len(errors) > 1 else str(output.status)
    end = {"status": int(status) if status.isdigit() else None, "words": errors[0].strip()[-_WORDS:]}
    return Answer(parts[1::2], ended, -output.status if output.killed else None, end if setup else None)


def have(needs: Json) -> Json:
    """Return {"program": it exists, "paths": missing ones}; uncheckable paths count as existing."""
    arguments = [needs["program"] or "", *map(os.path.expanduser, needs["paths"])]
    answer = ask(
        lambda mark: ["/bin/sh", "-c", _HAVE, "sh", mark, *arguments], needs["python"], needs.get("setup")
    )
    missing = (answer.fields or [""])[0].split()
    return {
        "program": "program" not in missing,
        "paths": [int(place) for place in missing if place != "program"],
    }


# --- the facts ---


def facts(agent: Agent, request: Request) -> Json:
    python, setup, state = request["python"], request.get("setup"), agent.state
    return {
        "machine": machine.look(),
        **_python(python, setup, list(request.get("packages") or ()), request.get("env") or {}),
        "r": _r(python, setup) if request.get("r") else None,
        "disk": {"state": free_bytes(state) if state else None, "workdir": _workdir(request["workdir"])},
        **gpus.look(agent, request),
        "addresses": [{"ip": ip, "name": name} for ip, name in sorted(network.addresses().items())],
        "answers": {
            name: (run_program(argv) or "")[:_OUTPUT]
            for name, argv in (request.get("programs") or {}).items()
        },
    }


def imports(_agent: Agent, request: Request) -> Json:
    """Import the modules up to the first that fails; `ended` is "" if the process finished normally."""
    gpus, probe = "gpus" if request.get("gpus") else "-", str(request.get("probe") or "")
    python, modules = str(request["python"]), list(map(str, request["modules"]))
    answer = ask(
        lambda mark: [python, "-c", _IMPORT + probe, mark, gpus, *modules],
        python,
        request.get("setup"),
        {**request["env"], "TF_CPP_MIN_LOG_LEVEL": "3"},
        _IMPORTING,
    )
    reply: Json = {
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


def _python(python: str, setup: str | None, packages: list[str], env: dict[str, str]) -> Json:
    """Ask the training Python for its version, its state, and what is installed in it, without slow imports.

    Equal digests mean that nothing relevant has changed; what `env` sets does not count.
    """
    answer = ask(lambda mark: [python, "-c", _PYTHON, mark, *packages], python, setup, env)
    path, version, no_pip, *versions = answer.fields or ["", "", "", *packages]
    given = {f"{name}={value}" for name, value in env.items()}
    lines = [line for line in (path, *versions[len(packages) :]) if line not in given]
    lines += [procs.incarnation(), *os.uname(), *_devices(), procs.text("/sys/fs/cgroup/memory.max")]
    lines += [str(os.getuid()), str(sorted(os.sched_getaffinity(0)))]
    return {
        "python": {
            "path": path or None,
            "version": version or None,
            "ok": answer.fields is not None,
            "error": answer.why,
            "no_pip": bool(no_pip),
        },
        "setup": answer.setup,
        "digest": hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest(),
        "packages": {
            name: version if answer.fields and version else None
            for name, version in zip(packages, versions)  # noqa: B905
        },
    }


def _r(python: str, setup: str | None) -> Json:
    """Ask R for its version and those of its packages; without R only `error` is set."""
    answer = ask(lambda mark: ["Rscript", "-e", _R, mark], python, setup)
    version, *packages = (answer.fields or ["- - -"])[0].split(" ")
    reticulate, jsonlite = (None if each == "-" else each for each in (*packages, "-", "-")[:2])
    return {
        "version": None if answer.fields is None else version,
        "reticulate": reticulate,
        "jsonlite": jsonlite,
        "error": answer.why,
    }


def _workdir(path: str) -> Json:
    """Create the working folder if possible; it is writable if a file could be written."""
    path, error = absolute(path), ""
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(prefix=".orchestrate-", dir=path) as file:
            file.write(b"\n" * 4096)
    except OSError as trouble:
        error = reason(trouble)
    return {"path": path, "writable": not error, "error": error, "free": free_bytes(path)}


def _devices() -> Iterator[str]:
    """Return the accelerators and their driver, as the kernel shows them."""
    for folder in ("/dev", "/dev/dri", "/dev/accel", "/dev/vfio", "/proc/driver/nvidia/gpus"):
        for name in sorted(listed(folder)):
            if folder != "/dev" or name.startswith(("nvidia", "kfd", "accel", "apex", "tpu")):
                yield folder + "/" + name
    yield procs.text("/proc/driver/nvidia/version")
