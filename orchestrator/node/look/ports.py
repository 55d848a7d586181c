"""Ports of this machine: who holds one, by its lease or as the kernel knows."""

from __future__ import annotations

from typing import Any

from ..base import lenient, procs
from ..base.paths import Paths
from ..task import leases

_LISTEN = "0A"


def holder(port: int, paths: Paths | None, asker: str = "") -> Any:
    """Name the holder of a port: by the lease of another run than `asker`, else as /proc tells."""
    other = leases.leased(port, paths, asker)
    if other is not None:
        return other
    sockets = _sockets(port)
    if not sockets:
        return "a process that is gone by now, or in another network namespace"
    inode, uid = sockets[0]
    process = _owner_of(inode)
    if process is None:
        return f"a process of user {lenient.user(uid)}"
    pid, name = process
    return f"{name} pid {pid} (user {lenient.user(uid)})"


def is_listened(port: int) -> bool:
    """Say if any process of this network namespace listens on a port."""
    return any(state == _LISTEN for state, _, _ in _table(port))


def _sockets(port: int) -> list[tuple[str, int]]:
    """(inode, uid) of the sockets on a local port, listeners first."""
    sockets = [(state != _LISTEN, inode, uid) for state, inode, uid in _table(port) if inode != "0"]
    return [(inode, uid) for _, inode, uid in sorted(sockets)]


def _table(port: int) -> list[tuple[str, str, int]]:
    """(state, inode, uid) of what the kernel has on a local port."""
    ending = f":{port:04X}"
    rows = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[1].endswith(ending):
                rows.append((fields[3], fields[9], int(fields[7])))
    return rows


def _owner_of(inode: str) -> tuple[int, str] | None:
    """The process with that socket; None when it is another user's, whose descriptors we cannot see."""
    link = f"socket:[{inode}]"
    for process in procs.scan():
        if any(name == link for _, name in procs.open_files(process.pid)):
            return process.pid, procs.name(process.pid)
    return None
