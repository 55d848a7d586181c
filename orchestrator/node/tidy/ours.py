"""What of a folder is ours: `workdir` and `state` may lie where a user keeps `data` or `runs` of his own."""

from __future__ import annotations

import os
import re

from ..base.lenient import listed
from ..stock.envs import LOCK

_DIGEST = re.compile(r"[0-9a-f]{32,64}", re.ASCII)
_HALF_MADE = re.compile(r"work\..+\.[0-9a-f]{12}", re.ASCII)
_OF_A_STATE = frozenset(("attempts", "keeper", "run.json", "stopped"))


def is_state(path: str) -> bool:
    """Of a run, and not its working folder too; an empty one is what a crash left."""
    names = set(listed(path))
    return not names or (not names.isdisjoint(_OF_A_STATE) and "work" not in names)


def is_work(path: str) -> bool:
    """The folder that a run works in is noted with the trees that it was made from."""
    return _has(path, "trees") or not listed(path)


def is_stock(path: str) -> bool:
    """A tree or data: their name is the digest of what they hold."""
    return _DIGEST.fullmatch(os.path.basename(path)) is not None


def is_environment(path: str) -> bool:
    return _has(path, LOCK)


def is_half_made(path: str) -> bool:
    """A copy of a tree that a run was to work in."""
    return _HALF_MADE.fullmatch(os.path.basename(path)) is not None


def _has(path: str, name: str) -> bool:
    return os.path.isfile(os.path.join(path, name))
