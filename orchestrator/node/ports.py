"""Ports of this machine: who holds one, and the leases that keep two runs apart.

A lease is a flock on leases/<port>. The agent holds it, and so do the guards of tasks started for
that port: it lasts as long as the last of them. The text in the file counts only while it is locked.
"""

from __future__ import annotations

import json
import os
import time

from . import locks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from .agent import Agent, Request
    from .paths import Paths

_LISTEN = "0A"


def lease(agent: Agent, request: Request) -> Dict[str, Any]:
    """Take all ports for a run, or none and say who has them."""
    wanted = {int(port): task for port, task in request["ports"].items()}
    taken: Dict[int, int] = {}
    conflicts: List[Dict[str, Any]] = []
    for port in wanted:
        held = agent.leases.get(port)
        fd = (
            os.open(agent.paths.lease(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if held is None
            else held
        )
        taken[port] = fd
        if held is None and not locks.take(fd, locks.GLANCE):
            conflicts.append({"port": port, **_text(fd)})
    if conflicts:
        for port, fd in taken.items():
            if port not in agent.leases:
                os.close(fd)
        return {"taken": [], "conflicts": conflicts}
    for port, fd in taken.items():
        _write(
            fd, {"run": request["run"], "task": wanted[port], "owner": request["owner"], "since": time.time()}
        )
    agent.leases.update(taken)
    return {"taken": sorted(taken), "conflicts": []}


def holder(port: int, paths: Optional[Paths], asker: str = "") -> Any:
    """Who has a port: the lease of another run than the asking one, else the process as /proc tells."""
    other = leased(port, paths, asker)
    if other is not None:
        return other
    sockets = _sockets(port)
    if not sockets:
        return "a process that is gone by now, or in another network namespace"
    inode, uid = sockets[0]
    process = _owner_of(inode)
    if process is None:
        return f"a process of user {_user(uid)}"
    pid, name = process
    return f"{name} pid {pid} (user {_user(uid)})"


def leased(port: int, paths: Optional[Paths], asker: str = "") -> Optional[Dict[str, Any]]:
    """The lease of another run than the asking one."""
    found = lease_of(port, paths) if paths is not None else None
    return None if found is None or found["run"] == asker else found


def is_listened(port: int) -> bool:
    """Whether any process of this network namespace listens on it."""
    return any(state == _LISTEN for state, _, _ in _table(port))


def lease_of(port: int, paths: Paths) -> Optional[Dict[str, Any]]:
    """What a lease says that somebody holds; None for a free one."""
    path = paths.lease(port)
    try:
        if not locks.is_taken(path):
            return None
        with open(path, "rb") as file:
            return _text(file.fileno())
    except OSError:
        return None


def _text(fd: int) -> Dict[str, Any]:
    """What a lease says; unknown where its holder has not written yet."""
    unknown = {"run": "?", "task": "?", "owner": "?", "since": None}
    try:
        return {**unknown, **json.loads(os.pread(fd, 1 << 16, 0))}
    except ValueError:
        return unknown


def _write(fd: int, text: Dict[str, Any]) -> None:
    data = json.dumps(text).encode()
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))


def _sockets(port: int) -> List[Tuple[str, int]]:
    """(inode, uid) of the sockets on a local port, listeners first."""
    found = [(state != _LISTEN, inode, uid) for state, inode, uid in _table(port) if inode != "0"]
    return [(inode, uid) for _, inode, uid in sorted(found)]


def _table(port: int) -> List[Tuple[str, str, int]]:
    """(state, inode, uid) of what the kernel has on a local port."""
    wanted = f":{port:04X}"
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[1].endswith(wanted):
                found.append((fields[3], fields[9], int(fields[7])))
    return found


def _owner_of(inode: str) -> Optional[Tuple[int, str]]:
    """The process with that socket; None when it is another user's, whose descriptors we cannot see."""
    wanted = f"socket:[{inode}]"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        folder = f"/proc/{pid}/fd"
        try:
            for fd in os.listdir(folder):
                if os.readlink(f"{folder}/{fd}") == wanted:
                    with open(f"/proc/{pid}/comm", errors="replace") as file:
                        return int(pid), file.read().strip()
        except OSError:
            continue
    return None


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
