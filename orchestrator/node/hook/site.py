"""Prepare the Pythons of a task: put our `sitecustomize` and its parts first on their PYTHONPATH."""

from __future__ import annotations

import importlib.util
import os
import zlib

from ..base.descriptors import replace_file
from ..base.paths import TaskFolder, make_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional

    from ..base.paths import Paths

# SIGRTMIN+15 of glibc. Programs use USR1, USR2 and ALRM, and R, Java and Slurm scripts do too; in the
# middle of the real-time signals nobody has been met.
SIGNAL = 49
VARIABLE = "ORCHESTRATE_STACKS"
# Written in this order: with the last one all are there.
_PARTS = ("site_errors", "site_jax", "site_modules", "site_stacks", "site_tensorflow", "sitecustomize")


def mark(folder: TaskFolder) -> Dict[str, str]:
    """Tell our `sitecustomize` which signal it is, and where its file is made."""
    return {VARIABLE: f"{SIGNAL}:{folder.stacks}"}


def asked_for(spec: Mapping[str, Any]) -> bool:
    """Return True where the plan wants more of our `sitecustomize` than stacks and errors."""
    return any(name in (spec.get("env") or {}) for name in ("ORCHESTRATE_KERAS", "ORCHESTRATE_AUTO_SHARD"))


def install(paths: Paths) -> Optional[str]:
    """Make the folder with our `sitecustomize`, named by its version; None where it cannot be made.

    A task that cannot show its stacks is still a task.
    """
    try:
        sources = _sources()
        folder = paths.site(version(sources))
        if not os.path.exists(os.path.join(folder, _PARTS[-1] + ".py")):
            make_private(folder)
            for name in _PARTS:
                replace_file(os.path.join(folder, name + ".py"), sources[name])
    except (OSError, ImportError):  # no room; no longer readable where it came from
        return None
    return folder


def put_first(env: Dict[bytes, bytes], folder: str) -> None:
    """Keep the user's PYTHONPATH behind ours; an empty piece of it would mean the working folder."""
    rest = env.get(b"PYTHONPATH")
    env[b"PYTHONPATH"] = os.fsencode(folder) + (b":" + rest if rest else b"")


def version(sources: Mapping[str, bytes]) -> str:
    """Tell our files from those of another version; hashlib's libcrypto would take 4 ms of each start."""
    return f"{zlib.crc32(repr(sorted(sources.items())).encode()):08x}"


def _sources() -> Dict[str, bytes]:
    """Read the files as this package brought them along, from disk or from memory; none of them is run."""
    sources = {}
    for name in _PARTS:
        spec = importlib.util.find_spec(f"{__package__}.{name}")
        sources[name] = spec.loader.get_source(spec.name).encode()  # type: ignore[union-attr]
    return sources
