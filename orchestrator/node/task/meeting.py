"""Looks for a connection of a task to another task of its run, in the kernel's tables."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any, Iterable, Iterator, Mapping

from ..base import lenient, procs

UNKNOWN = ""  # it is alone by plan, or nothing was looked at yet
NONE = "none"  # no connection to another task so far
IDLE = "idle"  # connected, by a strategy that has reduced nothing so far
MET = "met"

_EVERY = 0.5  # seconds between two looks while there is none
_CLOSED = ("02", "06", "07", "0A")  # SYN_SENT, TIME_WAIT, CLOSE, LISTEN
_MAPPED = "0000000000000000FFFF0000"  # an IPv4 address in a table of IPv6


class Meeting:
    """Looks until there was a connection; later only for what the hook notes beside the report."""

    def __init__(self, env: Mapping[bytes, bytes], run: str, report: str) -> None:
        ends = [_split(one) for one in env.get(b"ORCHESTRATE_HOSTS", b"").decode().split(",") if one]
        rank = env.get(b"ORCHESTRATE_RANK", b"0").decode()
        own = int(rank) if rank.isdigit() else 0
        self._mark = report + ".idle"
        self._run = run
        self._ports = {"%04X" % int(port) for _, port in ends if port.isdigit()}
        self._names = [] if len(ends) < 2 else [name for i, (name, _) in enumerate(ends) if i != own]
        self._addresses: set[str] = set()
        self._foreign: set[str] = set()  # inodes of ends that are no task's
        self._due = 0.0
        self.state = NONE if self._names else UNKNOWN

    def resolve(self) -> None:
        """Find the addresses of peers; names in a thread, since a resolver may take long."""
        names = []
        for name in set(self._names):
            for family in (socket.AF_INET, socket.AF_INET6):
                try:
                    self._addresses.add(_hexadecimal(socket.inet_pton(family, name)))
                    break
                except OSError:
                    pass
            else:
                names.append(name)
        if names:
            import threading

            threading.Thread(target=self._look_up, args=(names,), daemon=True).start()

    def _look_up(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError):
                continue
            numbers = ((family, str(end[0]).partition("%")[0]) for family, _, _, _, end in found)
            self._addresses |= {_hexadecimal(socket.inet_pton(family, one)) for family, one in numbers}

    def look(self, now: float, leader: int) -> bool:
        """Look if it is time to; return True if there is news."""
        if self.state == UNKNOWN or now < self._due:
            return False
        self._due, before = now + _EVERY, self.state
        if before != NONE or self._is_connected(leader):
            self.state = IDLE if os.path.exists(self._mark) else MET
        return self.state != before

    def _is_connected(self, leader: int) -> bool:
        ends = dict(_connections(leader))
        near, far = [], []  # with the other end in this table, or not
        for (local, remote), inode in ends.items():
            other = ends.get((remote, local))
            address, _, port = remote.rpartition(":")
            if other is not None:
                if inode not in self._foreign:
                    near.append((inode, other))
            elif address in self._addresses or port in self._ports or local[-4:] in self._ports:
                far.append(inode)
        if not near and not far:
            return False
        table = procs.scan()
        family = {process.pid for process in procs.descendants(os.getpid(), table)}
        own = set(_sockets(family))
        if not own.isdisjoint(far):
            return True
        others = {other for inode, other in near if inode in own and other not in own}
        if others:
            strangers = (p.pid for p in table if p.pid not in family and not p.zombie)
            peers = [pid for pid in strangers if procs.marks(pid).get("ORCHESTRATE_RUN") == self._run]
            if not others.isdisjoint(_sockets(peers)):
                return True
        self._foreign.update(inode for inode, other in near if inode not in own or other in own)
        return False


def _split(end: str) -> tuple[str, str]:
    """The address and the port of `a:1` and `[::1]:1`."""
    address, _, port = end.rpartition(":")
    return address.strip("[]"), port


def _hexadecimal(packed: bytes) -> str:
    """An address as /proc/net/tcp has it: words of 32 bits in the machine's own order."""
    words = (packed[i : i + 4] for i in range(0, len(packed), 4))
    text = "".join("%08X" % int.from_bytes(word, sys.byteorder) for word in words)
    return text.removeprefix(_MAPPED)


def _connections(pid: int) -> Iterator[Any]:
    """The open connections in a process's network: ((local, remote), inode)."""
    for table in ("tcp", "tcp6"):
        for line in procs.text("/proc/%d/net/%s" % (pid, table)).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] not in _CLOSED and fields[9] != "0":
                local, remote = (end.removeprefix(_MAPPED) for end in fields[1:3])
                yield (local, remote), fields[9]


def _sockets(pids: Iterable[int]) -> Iterator[str]:
    for pid in pids:
        for fd in lenient.listed("/proc/%d/fd" % pid):
            name = lenient.link("/proc/%d/fd/%s" % (pid, fd))
            if name.startswith("socket:["):
                yield name[8:-1]
