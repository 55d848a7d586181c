"""The first code of ours at the far end: makes the package importable from memory and runs the agent.

Sent as text by `bootstrap`, so it imports nothing of ours, and it must be readable for a Python
so old that all it can do is to say so. stdin goes on behind this text with a line of two sizes,
the settings (JSON) and the sources ({module: source} as JSON, compressed).
"""

import sys

if sys.version_info < (3, 8):
    sys.exit("orchestrate: the agent needs Python 3.8 or newer; %s is %s" % (sys.executable, sys.version.split()[0]))

import json
import zlib
from importlib.machinery import ModuleSpec

PACKAGE = "orchestrate_node"


class Bundle:
    """Finder and loader of our modules; keeps the sources, because tracebacks show lines."""

    def __init__(self, sources):
        self._sources = sources

    def find_spec(self, name, path=None, target=None):
        if name == PACKAGE:
            return ModuleSpec(name, self, is_package=True)
        if name.startswith(PACKAGE + ".") and name[len(PACKAGE) + 1 :] in self._sources:
            return ModuleSpec(name, self)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__name__
        exec(compile(self.get_source(name), "<%s>" % name, "exec", dont_inherit=True), module.__dict__)

    def get_source(self, name):
        return self._sources[name[len(PACKAGE) + 1 :] or "__init__"]


def run():
    stdin = sys.stdin.buffer
    settings, bundle = (int(size) for size in stdin.readline().split())
    config = json.loads(stdin.read(settings))
    sys.meta_path.insert(0, Bundle(json.loads(zlib.decompress(stdin.read(bundle)))))
    from orchestrate_node import agent

    agent.main(config)


run()
