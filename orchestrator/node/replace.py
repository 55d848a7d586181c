"""Replacing a folder or file as a whole: made beside it under a hidden name, then given its name.

.<name>.incoming-<id>     what is being filled
.<name>.outgoing-<id>     what it replaces, for a moment
"""

from __future__ import annotations

import os
import shutil

from .trees import age, remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

_STALE = 24 * 3600.0  # seconds after which what is hidden there was given up
_RACES = 8  # others that may replace the same folder meanwhile: several hosts on one shared disk
INCOMING = ".incoming-"
_OUTGOING = ".outgoing-"


def beside(target: str) -> str:
    """An empty hidden folder on the same disk as `target`, which need not exist; raise OSError."""
    above, name = os.path.split(os.path.abspath(target))
    os.makedirs(above, exist_ok=True)
    for other in os.listdir(above):
        if other.startswith((f".{name}{INCOMING}", f".{name}{_OUTGOING}")):
            path = os.path.join(above, other)
            if age(path) > _STALE:
                remove(path)
    incoming = os.path.join(above, f".{name}{INCOMING}{os.urandom(6).hex()}")
    os.mkdir(incoming)
    return incoming


def keep(target: str, incoming: str, names: Sequence[str]) -> None:
    """Take unchanged files from what is there, without a second copy where the disk can; raise OSError."""
    for name in names:
        source, path = os.path.join(target, name), os.path.join(incoming, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            os.link(source, path, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except OSError:  # a disk without hard links
            shutil.copy2(source, path, follow_symlinks=False)


def swap(incoming: str, target: str) -> None:
    """Give `incoming` its name; what had it is removed. Raise OSError with the old one in its place."""
    outgoing = incoming.replace(INCOMING, _OUTGOING)
    for _ in range(_RACES):
        moved = _move(target, outgoing)
        try:
            os.rename(incoming, target)
        except OSError:
            if moved and not os.path.lexists(target):
                os.rename(outgoing, target)
                raise
            if not os.path.lexists(target):
                raise
        else:
            _remove(outgoing)
            return
        _remove(outgoing)
    raise OSError(16, "others replace it all the time", target)


def take_away(target: str) -> None:
    """Remove a folder or file, at once for all who look; nothing may be there. Raise OSError."""
    above, name = os.path.split(target)
    outgoing = os.path.join(above, f".{name}{_OUTGOING}{os.urandom(6).hex()}")
    if _move(target, outgoing):
        _remove(outgoing)


def _move(source: str, target: str) -> bool:
    try:
        os.rename(source, target)
    except FileNotFoundError:
        return False
    return True


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        remove(path)
    elif os.path.lexists(path):
        os.unlink(path)
