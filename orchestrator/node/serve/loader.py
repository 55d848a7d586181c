"""The first code of ours at the far end: makes the package importable from memory and runs the agent.

Sent as text by `bootstrap`, so it imports nothing of ours, and it must be readable for a Python
so old that all it can do is to say so. stdin goes on behind this text with a line (two sizes),
the settings (JSON) and the bundle ({module: source} as JSON, compressed).
"""

import sys

if sys.version_info < (3, 8):
    sys.exit(
        "orchestrate: the agent needs Python 3.8 or newer; %s is %s"
        % (sys.executable, sys.version.split()[0])
    )

import json
import os
import zlib
from importlib.machinery import ModuleSpec

INIT = ".__init__"  # behind the name of a package: its own code


TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Optional


class Bundle:
    """Finder and loader of our modules; keeps the sources, because tracebacks show lines."""

    def __init__(self, sources: "Dict[str, str]") -> None:
        self._sources = sources

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Optional[ModuleSpec]":  # noqa: ARG002
        if name not in self._sources and name + INIT not in self._sources:
            return None
        return ModuleSpec(name, self, is_package=name not in self._sources)  # type: ignore[arg-type] # a loader by its methods

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual kind of module will do."""

    def exec_module(self, module: "ModuleType") -> None:
        room = module.__spec__.submodule_search_locations is not None  # type: ignore[union-attr]
        name = module.__name__ + INIT if room else module.__name__
        code = compile(self._sources[name], name.replace(".", "/") + ".py", "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - what an importer does

    def get_source(self, name: str) -> str:
        return self._sources[name]


def run() -> None:
    stdin = sys.stdin.buffer
    settings, packed = stdin.readline().split()
    config = json.loads(stdin.read(int(settings)))
    sys.meta_path.insert(0, Bundle(json.loads(zlib.decompress(stdin.read(int(packed))))))
    from orchestrate_node.serve import ops  # type: ignore[import-not-found]

    os._exit(ops.main(config))  # nothing of an interpreter's orderly end is of use here


run()
