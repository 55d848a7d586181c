"""Imports what training imports, in a process as a task's would be: a file that is there proves nothing.

Its limits are those of a task too. Each answer is written at once, so that what ends the process (a signal
from an instruction that this processor lacks, say) is known by what came before.
"""

from __future__ import annotations

import json
import os

from ..base.annotations import Any
from ..base.program import listen
from ..serve.agent import Agent, Request
from ..task import environ

_SECONDS = 170.0  # a first import from a network file system takes a minute
_LINES = 3

# Any Python can run it. What it says stands between marks: libraries print, too.
_PROGRAM = """
import gc, importlib, json, os, sys
gc.disable()  # it takes a fifth of an import, for nothing: the process ends soon
mark = sys.argv[1]
def say(what):
    os.write(1, (mark + json.dumps(what) + mark).encode("utf-8"))
try:
    import resource
    limits = {}
    for name in ("NOFILE", "AS", "NPROC"):
        soft = resource.getrlimit(getattr(resource, "RLIMIT_" + name))[0]
        limits[name.lower()] = None if soft == resource.RLIM_INFINITY else soft
    say({"limits": limits})
except ImportError:
    pass
for name in sys.argv[3:]:
    say({"begins": name})
    try:
        module = importlib.import_module(name)
        version, path = [str(getattr(module, key, "") or "") for key in ("__version__", "__file__")]
        say({"name": name, "version": version, "error": "", "path": path})
    except BaseException as error:
        text = str(error).strip()
        say({"name": name, "version": None, "error": type(error).__name__ + (": " + text if text else "")})
        break
if sys.argv[2] == "gpus" and "tensorflow" in sys.modules:
    import tensorflow
    say({"gpus": len(tensorflow.config.list_physical_devices("GPU"))})
"""


def ask(_agent: Agent, request: Request) -> dict[str, Any]:
    """What came of it; `ended` is why it ended before its last word, "" for a good end."""
    mark = os.urandom(8).hex()
    gpus = "gpus" if request.get("gpus") else "-"
    argv = [str(request["python"]), "-c", _PROGRAM, mark, gpus, *map(str, request["modules"])]
    spec = {
        "argv": argv,
        "python": request["python"],
        "setup": request.get("setup"),
        "env": {**request["env"], "TF_CPP_MIN_LOG_LEVEL": "3"},
    }
    command, env = environ.of_task(spec, {})
    env[b"PYTHONDONTWRITEBYTECODE"] = b"1"  # a look changes nothing
    out, ended, signal = _run(command, env)
    return {**_read(out.split(mark)[1::2]), "threads": _threads(), "ended": ended, "signal": signal}


def _run(command: list[bytes], env: dict[bytes, bytes]) -> tuple[str, str, int | None]:
    """What it wrote, why it ended too early, and the signal that ended it."""
    home = os.path.expanduser("~")
    cwd = home if os.access(home, os.X_OK) else "/"  # an account may have none
    try:
        said = listen(command, env, _SECONDS, cwd)
    except OSError as error:
        return "", f"{os.fsdecode(command[0])}: {error.strerror or error}", None
    text = said.out.decode("utf-8", "replace")
    if said.killed:
        return text, said.killed, -said.status
    return text, said.why or ((_tail(said.err) or f"exit status {said.status}") if said.status else ""), None


def _read(said: list[str]) -> dict[str, Any]:
    modules: list[dict[str, Any]] = []
    limits: dict[str, Any] = {}
    gpus = None
    begun = ""
    for text in said:
        try:
            what = json.loads(text)
        except ValueError:
            continue
        limits = what.get("limits", limits)
        gpus = what.get("gpus", gpus)
        begun = what.get("begins", begun)
        if "name" in what:
            begun = ""
            modules.append({"path": "", **what})
    return {"modules": modules, "limits": limits, "gpus": gpus, "importing": begun}


def _threads() -> int:
    """Those of this user, in this container at least: what RLIMIT_NPROC counts."""
    uid, number = os.getuid(), 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid == uid:
                number += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue  # it has ended
    return number


def _tail(err: bytes) -> str:
    lines = [line.strip() for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
    return " / ".join(lines[-_LINES:])[-600:]
