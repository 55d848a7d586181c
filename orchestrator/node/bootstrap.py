"""The controller's half of an agent's start: the command line, and what is then written to its stdin.

    controller                                   far end
    argv(python)                  ->  login shell -> python -c COMMAND_CODE
    payload(config)               ->  COMMAND_CODE runs loader.py, which runs agent.main(config)
                                  <-  login noise, frames.MARKER, {"hello": ...}

Nothing more may be written before the marker was seen: the bytes would be lost in a buffer.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

PACKAGE = "orchestrate_node"
_STAYS_HERE = frozenset({"bootstrap.py", "loader.py"})

# One line for every login shell: no quote, backslash, dollar or exclamation mark, so that no
# shell's idea of quoting matters (csh expands `!` inside quotes, fish changes backslashes).
COMMAND_CODE = "import sys;f=sys.stdin.buffer;exec(f.read(int(f.readline())))"


def argv(agent_python: str) -> list[str]:
    """The command that waits for `payload` on its stdin.

    -I and -S: nothing of the user's can change us, and a start costs half. -X utf8: paths and
    environment values are the same bytes whatever the login's locale is.
    """
    return [agent_python, "-I", "-S", "-X", "utf8", "-c", COMMAND_CODE]


def payload(config: Mapping[str, Any]) -> bytes:
    """Everything that goes to stdin before the marker comes back."""
    settings = json.dumps(dict(config)).encode()
    loader, bundle = _parts()
    return b"%d\n%b%d %d\n%b%b" % (len(loader), loader, len(settings), len(bundle), settings, bundle)


@functools.cache
def _parts() -> tuple[bytes, bytes]:
    """The loader's source, and the sources of what runs behind it as {module: source}, compressed."""
    folder = resources.files(__package__)
    sources = {
        item.name.removesuffix(".py"): item.read_text(encoding="utf-8")
        for item in folder.iterdir()
        if item.name.endswith(".py") and item.name not in _STAYS_HERE
    }
    bundle = json.dumps(dict(sorted(sources.items()))).encode()
    return (folder / "loader.py").read_bytes(), zlib.compress(bundle, 9)
