"""Looks for a connection of a task to another task of its run, in the kernel's tables."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import AbstractSet, Iterable, Iterator, Mapping, NamedTuple

from ..base import lenient, procs

UNKNOWN = ""  # it is alone by plan, or nothing was looked at yet
NONE = "none"  # no connection to another task so far
IDLE = "idle"  # connected, by a strategy that has reduced nothing so far
MET = "met"

_OFTEN, _SELDOM = 0.1, 2.0  # seconds between two looks: at first, and after some minutes
_SHARE = 20.0  # times what a look costs, where that is more
_HALF_OPEN = ("02", "03", "0C")  # SYN_SENT, SYN_RECV, NEW_SYN_RECV
_CLOSED, _LISTEN = "07", "0A"
_PRIVILEGED = 1024  # logins and file systems connect hosts, too
_MAPPED = "00000000" * 2 + "%08X" % int.from_bytes(b"\0\0\xff\xff", sys.byteorder)  # IPv4 in a table of IPv6


class Row(NamedTuple):
    """A line of /proc/net/tcp; the ends as (address, port), in the kernel's own digits."""

    local: tuple[str, str]
    remote: tuple[str, str]
    state: str
    inode: str  # "0" once the process has closed it


class Places(NamedTuple):
    """Where the other tasks are."""

    addresses: AbstractSet[str]
    ports: AbstractSet[str]  # of all tasks


class Meeting:
    """Looks until there was a connection; later only for what the hook notes beside the report."""

    def __init__(self, env: Mapping[bytes, bytes], run: str, report: str) -> None:
        ends = [_split(one) for one in env.get(b"ORCHESTRATE_HOSTS", b"").decode().split(",") if one]
        rank = env.get(b"ORCHESTRATE_RANK", b"0").decode()
        own = int(rank) if rank.isdigit() else 0
        self._mark = report + ".idle"
        self._run = run
        self._names = [] if len(ends) < 2 else [name for i, (name, _) in enumerate(ends) if i != own]
        self._addresses: set[str] = set()
        self._places = Places(self._addresses, {"%04X" % int(port) for _, port in ends if port.isdigit()})
        self._foreign: set[str] = set()  # inodes of ends on this machine that are no task's
        self.state = NONE if self._names else UNKNOWN
        self._began = time.monotonic()
        self.due = self._began if self._names else 0.0
        # What is there before the task is not its own: logins, and what preflight has just closed.
        self._before = {row[:2] for row in _tables(os.getpid())} if self._names else set()

    def resolve(self) -> None:
        """Find the addresses of peers; names in a thread, since a resolver may take long."""
        names = []
        for name in set(self._names):
            packed = list(_packed(name))
            self._addresses.update(map(hexadecimal, packed))
            if not packed:
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
            numbers = (str(end[0]).partition("%")[0] for _, _, _, _, end in found)
            self._addresses.update(hexadecimal(packed) for one in numbers for packed in _packed(one))

    def look(self, now: float) -> bool:
        """Look if it is time to; return True if there is news."""
        if self.state == UNKNOWN or now < self.due:
            return False
        before = self.state
        if before != NONE or self._is_connected():
            self.state = IDLE if os.path.exists(self._mark) else MET
        cost = time.monotonic() - now
        self.due = now + min(_SELDOM, max(_OFTEN, cost * _SHARE, (now - self._began) / 100))
        return self.state != before

    def _is_connected(self) -> bool:
        table = procs.scan()
        family = {process.pid for process in procs.descendants(os.getpid(), table)}
        networks = {lenient.link("/proc/%d/ns/net" % pid): pid for pid in family}
        rows = [row for pid in networks.values() for row in _tables(pid) if row[:2] not in self._before]
        own = set(_sockets(family))
        met, unsure = far(rows, own, self._places)
        if unsure and not met:
            runs = ((p.pid, procs.marks(p.pid).get("ORCHESTRATE_RUN", self._run)) for p in table)
            met = not unsure.issubset(_sockets(pid for pid, run in runs if run != self._run))
        beside = near(rows, own) - self._foreign
        if beside and not met:
            others = (process.pid for process in procs.bearers(self._run) if process.pid not in family)
            met = not beside.isdisjoint(_sockets(others))
            self._foreign |= beside
        return met


def far(rows: Iterable[Row], own: AbstractSet[str], places: Places) -> tuple[bool, set[str]]:
    """Return whether there is a connection with another machine's task, and inodes of what else may be one.

    Their process may be out of sight, below a container's daemon, or have closed them by now ("0").
    """
    rows = list(rows)
    served = {row.local[1] for row in rows if row.state == _LISTEN and row.inode in own}
    ends = {row[:2] for row in rows}
    unsure = set()
    for row in rows:
        (here, port), (there, other) = row.local, row.remote
        local = (row.remote, row.local) in ends or here == there or (_is_loop(here) and _is_loop(there))
        if local or row.state in (*_HALF_OPEN, _LISTEN):
            continue
        known = there in places.addresses
        if port in served or (row.inode in own and (known or not places.ports.isdisjoint((port, other)))):
            return True, set()
        if known and min(int(port, 16), int(other, 16)) >= _PRIVILEGED:
            unsure.add(row.inode)
    return False, unsure


def near(rows: Iterable[Row], own: AbstractSet[str]) -> set[str]:
    """Return the inodes of what the task is connected to on its machine, outside of itself."""
    ends = {row[:2]: row.inode for row in rows if row.state not in (_CLOSED, _LISTEN, *_HALF_OPEN)}
    others = {ends.get((remote, local), "0") for (local, remote), inode in ends.items() if inode in own}
    return others - own - {"0"}


def _is_loop(address: str) -> bool:
    return len(address) == 8 and address[-2:] == "7F"


def _split(end: str) -> tuple[str, str]:
    """The address and the port of `a:1` and `[::1]:1`."""
    address, _, port = end.rpartition(":")
    return address.strip("[]"), port


def _packed(address: str) -> Iterator[bytes]:
    """The bytes of an address; none for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            yield socket.inet_pton(family, address)
        except OSError:
            pass


def hexadecimal(packed: bytes) -> str:
    """An address as /proc/net/tcp has it: words of 32 bits in the machine's own order."""
    words = (packed[i : i + 4] for i in range(0, len(packed), 4))
    return "".join("%08X" % int.from_bytes(word, sys.byteorder) for word in words)


def parse(table: str) -> Iterator[Row]:
    """The lines of /proc/net/tcp, or of tcp6."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9:
            ends = (end[24:] if end.startswith(_MAPPED) else end for end in fields[1:3])
            local, remote = ((end[:-5], end[-4:]) for end in ends)
            yield Row(local, remote, fields[3], fields[9])


def _tables(pid: int) -> Iterator[Row]:
    """The connections of a process's network."""
    for table in ("tcp", "tcp6"):
        yield from parse(procs.text("/proc/%d/net/%s" % (pid, table)))


def _sockets(pids: Iterable[int]) -> Iterator[str]:
    for pid in pids:
        for fd in lenient.listed("/proc/%d/fd" % pid):
            name = lenient.link("/proc/%d/fd/%s" % (pid, fd))
            if name.startswith("socket:["):
                yield name[8:-1]
