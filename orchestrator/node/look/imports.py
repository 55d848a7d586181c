"""Import what training imports, in a process as a task's would be: a file that is there proves nothing.

Each answer is written at once, so that what ends the process (a signal from an instruction that this
processor lacks, say) is known by what came before.
"""

from __future__ import annotations

import json
import os
from typing import Any

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
for name in sys.argv[3:]:
    say({"importing": name})
    try:
        version = str(getattr(importlib.import_module(name), "__version__", "") or "")
        say({"importing": "", "module": {"name": name, "version": version, "error": ""}})
    except BaseException as error:
        text = type(error).__name__ + (": " + str(error).strip() if str(error).strip() else "")
        say({"importing": "", "module": {"name": name, "version": None, "error": text}})
        break
if sys.argv[2] == "gpus" and "tensorflow" in sys.modules:
    import tensorflow
    say({"gpus": len(tensorflow.config.list_physical_devices("GPU"))})
"""


def ask(_agent: Agent, request: Request) -> dict[str, Any]:
    """Import the modules up to the first that fails; `ended` is "" where the process came to a good end."""
    mark = os.urandom(8).hex()
    gpus = "gpus" if request.get("gpus") else "-"
    spec = {
        "argv": [str(request["python"]), "-c", _PROGRAM, mark, gpus, *map(str, request["modules"])],
        "python": request["python"],
        "setup": request.get("setup"),
        "env": {**request["env"], "TF_CPP_MIN_LOG_LEVEL": "3"},
    }
    command, env = environ.of_task(spec, {})
    env[b"PYTHONDONTWRITEBYTECODE"] = b"1"  # a look changes nothing
    text, ended, signal = _run(command, env)
    answer: dict[str, Any] = {"modules": [], "gpus": None, "importing": "", "ended": ended, "signal": signal}
    for part in text.split(mark)[1::2]:
        try:
            fields = json.loads(part)
        except ValueError:
            continue
        answer["modules"] += [fields.pop("module")] if "module" in fields else []
        answer.update(fields)
    return answer


def _run(command: list[bytes], env: dict[bytes, bytes]) -> tuple[str, str, int | None]:
    """Return its output, why it ended too early, and the signal that ended it."""
    home = os.path.expanduser("~")
    cwd = home if os.access(home, os.X_OK) else "/"  # an account may have none
    try:
        output = listen(command, env, _SECONDS, cwd)
    except OSError as error:
        return "", f"{os.fsdecode(command[0])}: {error.strerror or error}", None
    text = output.out.decode("utf-8", "replace")
    if output.killed:
        return text, output.killed, -output.status
    lines = [line.strip() for line in output.err.decode("utf-8", "replace").splitlines() if line.strip()]
    last = " / ".join(lines[-_LINES:])[-600:] or f"exit status {output.status}"
    return text, output.why or (last if output.status else ""), None
