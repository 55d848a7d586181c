"""The agent's code, compiled and kept where the agent itself keeps it: a host that was used before.

Hosts of tests are new, as a rule; to compile the same modules on each took a third of their agents' CPU.
"""

from __future__ import annotations

import atexit
import functools
import json
import marshal
import sys
import tempfile
import zlib
from pathlib import Path

from orchestrator.node.serve import bootstrap


@functools.cache
def _kept() -> Path:
    """The file, of whose content all hosts have a link."""
    stream = bootstrap.payload({})
    size, _, rest = stream.partition(b"\n")
    sizes, _, rest = rest[int(size) :].partition(b"\n")
    settings, _, digest = sizes.decode().split()
    sources: dict[str, str] = json.loads(zlib.decompress(rest[int(settings) :]))
    codes = {
        name: marshal.dumps(compile(text, name.replace(".", "/") + ".py", "exec", dont_inherit=True))
        for name, text in sources.items()
    }
    data = marshal.dumps(codes)
    folder = tempfile.TemporaryDirectory(prefix="compiled-")
    atexit.register(folder.cleanup)
    file = Path(folder.name) / f"{digest}-{sys.implementation.cache_tag}-{sys.hexversion:x}"
    file.touch(0o600)
    file.write_bytes(zlib.crc32(data).to_bytes(4, "big") + data)
    return file


def put(state: Path) -> Path:
    """Make a state folder that has the file; its path there."""
    state.mkdir(mode=0o700, parents=True)
    (state / "code").mkdir(mode=0o700)
    file = state / "code" / _kept().name
    file.hardlink_to(_kept())
    return file
