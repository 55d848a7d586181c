"""Asks the training Python, in the job's own environment, what it is and what is installed in it."""

from __future__ import annotations

import json
import os
import subprocess

from . import environ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

_SECONDS = 45.0  # a cold network file system, and a user's setup

# Any Python 3 can run it, so that an old one can be named.
_QUESTION = """
import json, sys
found = {"path": sys.executable, "version": sys.version.split()[0], "prefix": sys.prefix, "packages": {}}
try:
    from importlib import metadata
except ImportError:
    metadata = None
for name in sys.argv[2:]:
    found["packages"][name] = None
    try:
        found["packages"][name] = metadata.version(name)
    except Exception:
        pass
print(sys.argv[1] + json.dumps(found))
"""


def ask(python: str, setup: Optional[str], packages: List[str]) -> Dict[str, Any]:
    """{"python", "packages", "prefix"} of `facts`; one process, and nothing big is imported."""
    mark = os.urandom(8).hex()  # setup may print
    spec = {"argv": [python, "-c", _QUESTION, mark, *packages], "python": python, "setup": setup}
    argv, env = environ.of_task(spec, {})
    try:
        done = subprocess.run(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
            check=False,
        )
    except OSError as error:
        return _unknown(packages, f"{os.fsdecode(argv[0])}: {error.strerror or error}")
    except subprocess.TimeoutExpired:
        return _unknown(packages, f"no answer within {_SECONDS:g} s")
    answer = done.stdout.decode("utf-8", "replace").rpartition(mark)[2]
    try:
        found = json.loads(answer)
    except ValueError:
        return _unknown(
            packages, _last_words(done.stderr) or f"it printed nothing and ended with {done.returncode}"
        )
    return {
        "python": {"path": found["path"], "version": found["version"], "ok": True, "error": ""},
        "packages": found["packages"],
        "prefix": found["prefix"],
    }


def _unknown(packages: List[str], error: str) -> Dict[str, Any]:
    return {
        "python": {"path": None, "version": None, "ok": False, "error": error},
        "packages": dict.fromkeys(packages),
        "prefix": None,
    }


def _last_words(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else ""
