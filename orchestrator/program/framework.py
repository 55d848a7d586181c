"""Choose the framework of a run by what its command starts and its program imports. Pure.

A program of several is taken for the one that it trains with on several tasks, as far as its text tells. What
cannot be read, and what shows no framework, is TensorFlow's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from orchestrator.frameworks import FRAMEWORKS
from orchestrator.model import FrameworkName
from orchestrator.program.sources import imports

BACKEND = "KERAS_BACKEND"
_IN_TEXT = re.compile(rf"""{BACKEND}['"](?P<how>\]\s*=|,)\s*['"](?P<name>\w+)['"]""")
_KERAS = re.compile(r"^\s*(?:import|from)\s+keras\b", re.MULTILINE)


def choose(
    command: Sequence[str], sources: Sequence[str], env: Mapping[str, str]
) -> tuple[FrameworkName, str]:
    """Return the framework, and what shows it: "" for TensorFlow."""
    line = " ".join(command)
    for name, framework in FRAMEWORKS.items():
        if start := framework.starts.search(line):
            return name, f"the command starts {start[0].strip(' /')}"
    modules = dict.fromkeys(module for text in sources for module in imports(text))
    backend = next(filter(None, (_backend(text, env) for text in sources)), "")
    shown = {
        name: f"the program imports {module}"
        for name, framework in FRAMEWORKS.items()
        if (module := next(filter(framework.imports.__contains__, modules), ""))
    }
    if "keras" in modules:
        for name in FRAMEWORKS:
            if backend == name is not FrameworkName.TENSORFLOW:
                return name, f"{BACKEND} is {backend}"
        shown.setdefault(FrameworkName.TENSORFLOW, "")
    if len(shown) > 1:
        shown = {
            name: why for name, why in shown.items() if any(map(FRAMEWORKS[name].spreads.search, sources))
        }
    if len(shown) != 1 or FrameworkName.TENSORFLOW in shown:
        return FrameworkName.TENSORFLOW, ""
    return next(iter(shown.items()))


def _backend(text: str, env: Mapping[str, str]) -> str:
    """Name the backend of Keras: by a line before its import, which only as a default yields to `env`."""
    imported = _KERAS.search(text)
    setting = _IN_TEXT.search(text, 0, imported.start() if imported else len(text))
    if setting is None:
        return env.get(BACKEND, "")
    return env.get(BACKEND, setting["name"]) if setting["how"] == "," else setting["name"]
