"""The first code of ours at the far end: makes the package importable from memory and runs the agent.

Sent as text by `bootstrap`, so it imports nothing of ours, and it must be readable for a Python
so old that all it can do is to say so. stdin goes on behind this text with a line (two sizes and
the bundle's digest), the settings (JSON) and the bundle ({module: source} as JSON, compressed).

What was compiled is kept in the state folder when the agent leaves: the next start needs a third
less of the CPU. Without a state folder that is ours alone there is no such cache.
"""

import sys

if sys.version_info < (3, 8):
    sys.exit(
        "orchestrate: the agent needs Python 3.8 or newer; %s is %s"
        % (sys.executable, sys.version.split()[0])
    )

import gc
import json
import marshal
import os
import stat
import time
import zlib
from importlib.machinery import ModuleSpec

PACKAGE = "orchestrate_node"
INIT = ".__init__"  # behind the name of a package: its own code
FORGET = 7 * 24 * 3600  # seconds after which the code of another version goes
OBJECTS = 50_000  # between two looks for garbage: what is imported is none, and each look costs


TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Optional


class Bundle:
    """Finder and loader of our modules; keeps the sources, because tracebacks show lines."""

    def __init__(self, packed: bytes, digest: str, cache: "Cache") -> None:
        self.digest = digest  # of all that it holds
        self._packed = packed
        self._cache = cache
        self._sources = None  # type: Optional[Dict[str, str]]
        self._codes = cache.read()
        self._fresh = False

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Optional[ModuleSpec]":  # noqa: ARG002
        if name == PACKAGE or name.startswith(PACKAGE + "."):
            here = self._codes if name in self._codes or name + INIT in self._codes else self._unpacked()
            if name in here or name + INIT in here:
                return ModuleSpec(name, self, is_package=name not in here)  # type: ignore[arg-type] # a loader by its methods
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual kind of module will do."""

    def exec_module(self, module: "ModuleType") -> None:
        room = module.__spec__.submodule_search_locations is not None  # type: ignore[union-attr]
        exec(self._code(module.__name__ + INIT if room else module.__name__), module.__dict__)  # noqa: S102 - what an importer does

    def get_source(self, name: str) -> str:
        return self._unpacked()[name]

    def save(self) -> None:
        if self._fresh:
            self._cache.write(self._codes)

    def _code(self, name: str) -> "Any":
        if name in self._codes:
            return marshal.loads(self._codes[name])  # noqa: S302 - we wrote it, in a folder of ours
        code = compile(self.get_source(name), name.replace(".", "/") + ".py", "exec", dont_inherit=True)
        self._codes[name] = marshal.dumps(code)
        self._fresh = True
        return code

    def _unpacked(self) -> "Dict[str, str]":
        if self._sources is None:
            self._sources = json.loads(zlib.decompress(self._packed))
        return self._sources


class Cache:
    """Compiled modules on disk: a checksum, then {module: code} in this interpreter's own format."""

    def __init__(self, state: "Optional[str]", digest: str) -> None:
        self._state = os.path.expanduser(state or "/var/tmp/orchestrate-%d" % os.getuid())
        self._folder = os.path.join(self._state, "code")
        self._name = "%s-%s-%x" % (digest, sys.implementation.cache_tag, sys.hexversion)

    def read(self) -> "Dict[str, bytes]":
        if not is_ours(self._state):
            return {}
        try:
            with open(os.path.join(self._folder, self._name), "rb") as file:
                data = file.read()
            return marshal.loads(data[4:]) if checksum(data[4:]) == data[:4] else {}  # noqa: S302
        except (OSError, ValueError, EOFError, TypeError):
            return {}

    def write(self, codes: "Dict[str, bytes]") -> None:
        if not is_ours(self._state):
            return
        path = os.path.join(self._folder, self._name)
        beside = "%s.%d" % (path, os.getpid())
        data = marshal.dumps(codes)
        try:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(checksum(data) + data)
            os.replace(beside, path)
            self._forget_others()
        except OSError:
            pass  # a full disk: the next start is a little slower

    def _forget_others(self) -> None:
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            if name != self._name and time.time() - os.stat(path).st_mtime > FORGET:
                os.unlink(path)


def is_ours(folder: str) -> bool:
    """Nobody else may have put anything there: what is in it will be executed."""
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "big")


def run() -> None:
    gc.set_threshold(OBJECTS)
    stdin = sys.stdin.buffer
    settings, packed, digest = stdin.readline().decode().split()
    config = json.loads(stdin.read(int(settings)))
    bundle = Bundle(stdin.read(int(packed)), digest, Cache(config.get("state"), digest))
    sys.meta_path.insert(0, bundle)
    from orchestrate_node import main  # type: ignore[import-not-found]

    status = main.main(config)
    bundle.save()
    os._exit(status)  # nothing of an interpreter's orderly end is of use here


run()
