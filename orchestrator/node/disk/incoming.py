"""What is being received, written down, so that what a dead receiver left is removed by the next.

<state>/incoming/<id>      the folder that is filled; locked for as long as its receiver lives

The state folder is on a local disk: its locks tell the truth where those of the working folder, which
hosts may share, need not. A folder of another host or login is not in our list, and goes when it is old.
"""

from __future__ import annotations

import os

from ..base import locks
from ..base.annotations import Iterator
from ..base.fault import NodeError
from ..base.lenient import discard, listed
from ..base.paths import Paths, make_private
from ..serve.agent import Agent
from .removing import remove


def hold(agent: Agent | None, folder: str) -> None:
    """Write down that this process fills a folder; its lock ends with the process."""
    try:
        if agent is not None:
            _hold(agent.paths, folder)
    except (OSError, NodeError):
        pass  # no room, or no state folder: the folder goes when it is old
    if agent is not None:
        agent.rooms.setdefault("receiving", []).append(folder)


def give_up(agent: Agent) -> None:
    """The controller is gone: what has no name by now will not get one."""
    agent.jobs.end(("tree_begin", "tree_tar", "tree_seal", "files_put"))
    for folder in agent.rooms.pop("receiving", ()):
        remove(folder)


def remove_dead(paths: Paths) -> None:
    """Remove them, and what was written down of them."""
    for fd, note, folder in _free(paths):
        error = remove(folder) if folder else None
        if error is None:
            discard(note)
        os.close(fd)


def _hold(paths: Paths, folder: str) -> None:
    place = os.path.join(paths.root, "incoming")
    make_private(place)
    name = os.urandom(8).hex()
    hidden = os.path.join(place, f".{name}")
    fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)  # never closed: see above
    if not locks.take(fd):
        os.close(fd)
        return
    os.write(fd, os.fsencode(folder))
    os.rename(hidden, os.path.join(place, name))  # nobody sees it without its lock


def _free(paths: Paths) -> Iterator[tuple[int, str, str]]:
    """(descriptor with its lock, path of the note, folder) of each receiver that is gone."""
    place = os.path.join(paths.root, "incoming")
    for name in listed(place):
        note = os.path.join(place, name)
        try:
            fd = os.open(note, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # another one was faster
        if not locks.take(fd):
            os.close(fd)
            continue
        folder = os.fsdecode(os.read(fd, 1 << 16))
        yield fd, note, folder if folder.startswith("/") else ""
