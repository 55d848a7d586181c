"""The controller's half of an agent's start: the command line, and what is then written to its stdin.

    controller                                   host
    argv(python)                  ->  login shell -> python -c COMMAND_CODE
                                  <-  login output, frames.READY
    payload(config), requests     ->  COMMAND_CODE runs loader.py, which runs ops.main(config, requests)
                                  <-  frames.MARKER, {"hello": ...}, replies

Nothing may be written before READY was received: a startup file may have replaced our shell with one that
would execute it.
"""

from __future__ import annotations

import functools
import json
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .frames import READY

PACKAGE = "orchestrate_node"

# One line for every login shell: no quote, backslash, dollar or exclamation mark, so that
# quoting rules do not matter (csh expands `!` inside quotes, fish changes backslashes).
COMMAND_CODE = (
    "import sys;print(chr(0)+sys.argv[1]+chr(0),end=str(),flush=True);"
    "f=sys.stdin.buffer;exec(f.read(int(f.readline()or 0)))"
)

_making = threading.Lock()


def argv(agent_python: str) -> list[str]:
    """Return the command that waits for `payload` on its stdin.

    -I and -S: nothing of the user's can affect us, and the start takes half as long. -X utf8: paths and
    environment values are the same bytes in any locale.
    """
    return [agent_python, "-I", "-S", "-X", "utf8", "-c", COMMAND_CODE, READY.strip(b"\0").decode()]


def payload(config: Mapping[str, Any]) -> bytes:
    """Return everything that goes to stdin between READY and the marker."""
    settings = json.dumps(dict(config)).encode()
    with _making:  # with only a cache, connections that begin at once would each build them
        loader, bundle = _parts()
    sizes = b"%d %d\n" % (len(settings), len(bundle))
    return b"".join((b"%d\n" % len(loader), loader, sizes, settings, bundle))


@functools.cache
def _parts() -> tuple[bytes, bytes]:
    """Return the loader's source, and what runs after it: {module: source}, compressed."""
    here = Path(__file__)
    folder, stays = here.parents[1], (here, here.with_name("loader.py"))
    sources = {
        ".".join((PACKAGE, *path.relative_to(folder).with_suffix("").parts)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.py"))
        if path not in stays
    }
    return stays[1].read_bytes(), zlib.compress(json.dumps(sources).encode())
