"""Our first code on the host: makes the package importable from memory and runs the agent.

Sent as text by `bootstrap`, so it imports nothing of ours, and it must be readable for a Python so old that
all it can do is to report that. stdin continues after this text with a line (two sizes), the settings (JSON),
the bundle ({module: source} as JSON, compressed), and the first requests.

Compiled code is stored in the state folder: compiling is half of an agent's start.
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
import zlib
from importlib.machinery import ModuleSpec

INIT = ".__init__"  # after the name of a package: its own code
OBJECTS = 50_000  # between two garbage collections: imports create no garbage, and each takes time


TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, Optional


class Bundle:
    """Finder and loader of our modules; keeps the sources, because tracebacks show lines."""

    def __init__(self, packed: bytes, state: str) -> None:
        self._packed = packed
        self._sources = {}  # type: Dict[str, str]
        self._state = os.path.expanduser(state)
        self._path = f"{self._state}/code"
        self._codes = self._read()
        self._read_in = len(self._codes)

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Optional[ModuleSpec]":  # noqa: ARG002
        if not name.startswith("orchestrate_node"):
            return None
        names = self._codes if name in self._codes or name + INIT in self._codes else self._unpacked()
        if name not in names and name + INIT not in names:
            return None
        return ModuleSpec(name, self, is_package=name not in names)  # type: ignore[arg-type] # a loader by its methods

    def create_module(self, spec: ModuleSpec) -> None:
        """Use the default kind of module."""

    def exec_module(self, module: "ModuleType") -> None:
        room = module.__spec__.submodule_search_locations is not None  # type: ignore[union-attr]
        name = module.__name__ + INIT if room else module.__name__
        module.__file__ = path = name.replace(".", "/") + ".py"
        if name not in self._codes:
            self._codes[name] = marshal.dumps(compile(self.get_source(name), path, "exec", dont_inherit=True))
        exec(marshal.loads(self._codes[name]), module.__dict__)  # noqa: S102, S302 - what an importer does

    def get_source(self, name: str) -> str:
        return self._unpacked()[name]

    def get_data(self, path: str) -> bytes:
        """Return a source as it was sent, and keep it: a launch requests it, and unpacking takes 4 ms."""
        if path not in self._codes:
            self._codes[path] = self.get_source(path[:-3].replace("/", ".")).encode()
        return self._codes[path]

    def _unpacked(self) -> "Dict[str, str]":
        self._sources = self._sources or json.loads(zlib.decompress(self._packed))
        return self._sources

    def _read(self) -> "Dict[str, bytes]":
        try:
            with self._open(os.O_RDONLY, "rb") as file:
                kept, data = file.read(4), file.read()
        except OSError:
            return {}
        return marshal.loads(data) if kept == self._checksum(data) else {}  # noqa: S302

    def save(self) -> None:
        """Store the compiled code; a reader of a partial or mixed file compiles it again."""
        try:
            if len(self._codes) > self._read_in:
                data = marshal.dumps(self._codes)
                with self._open(os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "wb") as file:
                    file.write(self._checksum(data) + data)
        except OSError:
            pass  # on a full disk the next start is a little slower

    def _open(self, flags: int, mode: str) -> "Any":
        """Open the file if nobody else can or could write there: its content will be executed."""
        folder = os.lstat(self._state)
        if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.getuid() or folder.st_mode & 0o077:
            raise OSError
        fd = os.open(self._path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        if os.fstat(fd).st_uid != os.getuid():  # the folder was replaced
            os.close(fd)
            raise OSError
        return open(fd, mode)

    def _checksum(self, data: bytes) -> bytes:
        return zlib.crc32(data, zlib.crc32(self._packed + sys.version.encode())).to_bytes(4, "big")


def run() -> None:
    gc.set_threshold(OBJECTS)
    stdin = sys.stdin.buffer
    settings, packed = stdin.readline().split()
    config = json.loads(stdin.read(int(settings)))
    state = config.get("state") or "/var/tmp/orchestrate-%d" % os.getuid()
    bundle = Bundle(stdin.read(int(packed)), state)
    os.set_blocking(0, False)
    requests = stdin.peek()  # type: ignore[union-attr]  # buffered along with the bundle
    sys.meta_path.insert(0, bundle)
    from orchestrate_node.serve import ops  # type: ignore[import-not-found]

    status = ops.main(config, requests)
    bundle.save()
    os._exit(status)  # an interpreter's orderly shutdown is not needed here


run()
