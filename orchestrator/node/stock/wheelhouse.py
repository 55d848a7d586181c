"""Wheels that stay after an environment was made of them: a host that comes later gets them from here.

<workdir>/data/<digest>/wheels    the wheels, as they came; data like any other
<workdir>/envs/<name>/wheels      that digest, in the environment that was made of them

One set of wheels stays in a working folder, that of the newest environment: what two sets have in common
is linked when the second one comes, so nothing of it has to be sent again.
"""

from __future__ import annotations

import os

from ..base.fault import NodeError
from ..base.lenient import age, listed
from ..base.paths import absolute, digest_name, free_bytes
from ..disk.removing import hide_and_remove

_NOTE = "wheels"
_ROOM = 3e9  # bytes that have to be free beside them: tasks need the disk more than a later host does
_FRESH = 600.0  # seconds since a launch looked for it, in which a set may be about to be used


def keep(environment: str, wheels: str, room: float = _ROOM) -> None:
    """Note the wheels as those of an environment, if `room` bytes are free; older sets go."""
    digest = _digest_of(environment, wheels)
    if digest is None or free_bytes(environment) < room:
        return
    try:
        with open(os.path.join(environment, _NOTE), "w", encoding="ascii") as file:
            file.write(digest)
    except OSError:
        return
    data = _data(environment)
    for other in set(noted(os.path.dirname(environment)).values()) - {digest}:
        path = os.path.join(data, other)
        if age(path) > _FRESH:
            try:
                hide_and_remove(path)
            except OSError:
                pass  # there is none, or somebody was faster


def is_kept(environment: str, wheels: str | None) -> bool:
    """Whether these wheels are noted as those of an environment."""
    return wheels is not None and _noted(environment) == _digest_of(environment, wheels) is not None


def noted(envs: str) -> dict[str, str]:
    """The names of environments whose wheels may be here, and the names of these as data."""
    found = {name: _noted(os.path.join(envs, name)) for name in listed(envs) if not name.startswith(".")}
    return {name: digest for name, digest in found.items() if digest is not None}


def _noted(environment: str) -> str | None:
    try:
        with open(os.path.join(environment, _NOTE), encoding="ascii") as file:
            return digest_name(file.read(100))
    except (OSError, ValueError, NodeError):
        return None


def _digest_of(environment: str, wheels: str) -> str | None:
    """The name of the data that a folder of wheels is, where it is that of this working folder."""
    folder = os.path.dirname(absolute(wheels))
    try:
        return (
            digest_name(os.path.basename(folder)) if os.path.dirname(folder) == _data(environment) else None
        )
    except NodeError:
        return None


def _data(environment: str) -> str:
    return os.path.join(os.path.dirname(os.path.dirname(environment)), "data")
