"""Detects a connection of a task to another task of its run in the kernel's tables."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from contextlib import suppress
from typing import AbstractSet, Iterable, Iterator, Mapping, NamedTuple, Sequence

from ..base import lenient, procs

UNKNOWN = ""  # the plan has no peers for it, or it was not checked yet
NONE = "none"  # no connection to another task so far
IDLE = "idle"  # connected, by a strategy that has reduced nothing so far
UNPATCHED = "unpatched"  # connected, by a Python that ignores our `sitecustomize`
MET = "met"

_OFTEN, _SELDOM = 0.1, 2.0  # seconds between two checks: at first, and after some minutes
_SHARE = 20.0  # or this many times the duration of a check, if that is longer
_HALF_OPEN = ("02", "03", "0C")  # SYN_SENT, SYN_RECV, NEW_SYN_RECV
_CLOSED, LISTEN = "07", "0A"
_ENDING = ("04", "05", "06", "09", "0B")  # FIN_WAIT1, FIN_WAIT2, TIME_WAIT, LAST_ACK, CLOSING
_PRIVILEGED = 1024  # logins and file systems also connect hosts
_MAPPED = "0" * 16 + format(int.from_bytes(b"\0\0\xff\xff", sys.byteorder), "08X")  # IPv4 in a table of IPv6


class Row(NamedTuple):
    """A line of /proc/net/tcp; the ends as (address, port), in the kernel's own digits."""

    local: tuple[str, str]
    remote: tuple[str, str]
    state: str
    inode: str  # "0" once the process has closed it
    uid: int


class Meeting:
    """Checks for a connection until one is found, and then for marks of the hook next to the report."""

    def __init__(self, env: Mapping[bytes, bytes], run: str, report: str) -> None:
        ends = [end.rpartition(":")[::2] for end in env.get(b"ORCHESTRATE_HOSTS", b"").decode().split(",")]
        rank = env.get(b"ORCHESTRATE_RANK", b"0").decode()
        own = int(rank) if rank.isdigit() else 0
        self._mark = report + ".idle"
        self._run = run
        patched = b"ORCHESTRATE_AUTO_SHARD" in env or b"ORCHESTRATE_KERAS" in env
        self._site = env.get(b"PYTHONPATH", b"").split(b":")[0] if patched else b""
        self._names = [name.strip("[]") for name, _ in ends[:own] + ends[own + 1 :] if name]
        self._addresses: set[str] = set()  # of the other tasks
        ports = [f"{int(port):04X}" if port.isdigit() else "" for _, port in ends]
        self._ports = set(ports) - {""}
        self._others = self._ports.difference(ports[own : own + 1])  # those of other tasks only
        self.state = NONE if self._names else UNKNOWN
        self._began = time.monotonic()
        self.due = self._began + _OFTEN if self._names else 0.0
        self._before: set[tuple[tuple[str, str], tuple[str, str]]] | None = None  # until a check

    def remember(self, rows: Iterable[Row], own: AbstractSet[str] = frozenset()) -> None:
        """Ignore existing connections that are not the task's own: logins, and what preflight has closed.

        The first check does it for a program that starts now: reading the tables takes 10 ms, and no program
        connects so early. One that has been imported ahead of time may.
        """
        rows = list(rows)
        kept = {end for row in rows if row.inode in own for end in (row[:2], row[1::-1])}
        self._before = {row[:2] for row in rows} - kept

    def resolve(self) -> None:
        """Find the addresses of peers; names in a thread, because a resolver may be slow."""
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
                addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError):
                continue
            numbers = (str(end[0]).partition("%")[0] for _, _, _, _, end in addresses)
            self._addresses.update(hexadecimal(packed) for number in numbers for packed in _packed(number))

    def hurry(self) -> None:
        """Make a check due now: a short training may have ended since the last one.

        A task that ended before the first check has not trained.
        """
        if self.due:
            self.due = time.monotonic() + _OFTEN if self._before is None else self._began

    def look(self, now: float) -> bool:
        """Check if a check is due; return True if the state has changed."""
        if self.state == UNKNOWN or now < self.due:
            return False
        before = self.state
        if before == NONE and self._is_connected():
            self.state = UNPATCHED if self._site and _ignored(self._site, self._ports) else MET
        if self.state in (MET, IDLE):
            self.state = IDLE if os.path.exists(self._mark) else MET
        cost = time.monotonic() - now
        self.due = now + min(_SELDOM, max(_OFTEN, cost * _SHARE, (now - self._began) / 100))
        return self.state != before

    def _is_connected(self) -> bool:
        table = procs.scan()
        family = {process.pid for process in procs.descendants(os.getpid(), table)}
        networks = {lenient.link(f"/proc/{pid}/ns/net"): pid for pid in family or [os.getpid()]}
        rows, own = [row for pid in networks.values() for row in tables(pid)], set(_sockets(family))
        if self._before is None:
            self.remember(rows, own)
        rows = [row for row in rows if row[:2] not in (self._before or ())]
        if far(rows, own, self._addresses, self._ports):
            return True
        beside = near(rows, own)
        # Only a task listens at a task's port; its process may be hidden in another container.
        ends = _ends(row for row in rows if row.inode in beside) & self._ports
        # The kernel lists a closed connection for a minute, but not its process.
        past = _ends(row for row in rows if row.inode == "0" and row.state in _ENDING) & self._others
        if ends or (past and not family):
            return True
        others = (process.pid for process in procs.bearers(self._run) if process.pid not in family)
        return bool(beside) and not beside.isdisjoint(_sockets(others))


def _ignored(site: bytes, ports: AbstractSet[str]) -> bool:
    """Return True if there are Pythons below this process that train, and none of them uses this folder.

    Those at the ports of tasks train; otherwise any may. The program can be a child of another Python.
    """
    uses = {}
    for process in procs.descendants(os.getpid(), procs.scan()):
        if os.path.basename(lenient.link(f"/proc/{process.pid}/exe")).startswith("python"):
            paths = procs.variable(process.pid, b"PYTHONPATH").split(b":")
            isolated = re.match(r"-\w*[EIS]", "".join(procs.own_argv(process.pid)[1:2]))
            uses[process.pid] = site in paths and not isolated
    train = [pid for pid in uses for row in tables(pid) if _at(row, ports) and row.inode in _sockets([pid])]
    return bool(uses) and not any(uses[pid] for pid in train or uses)


def far(
    rows: Sequence[Row], own: AbstractSet[str], addresses: AbstractSet[str], ports: AbstractSet[str]
) -> bool:
    """Return True if there is a connection to a task on another machine.

    Its process may be hidden, below a container's daemon, or have closed it: any connection to the machine
    of another task counts, unless a port is one of logins and file systems.
    """
    served = {row.local[1] for row in rows if row.state == LISTEN and row.inode in own}
    ends = {row[:2] for row in rows}
    for row in rows:
        (here, port), (there, other) = row.local, row.remote
        local = (row.remote, row.local) in ends or here == there or (_is_loop(here) and _is_loop(there))
        if local or row.state in (*_HALF_OPEN, LISTEN):
            continue
        if port in served or (row.inode in own and _at(row, ports)):
            return True
        unprivileged = min(int(port, 16), int(other, 16)) >= _PRIVILEGED
        if there in addresses and (row.inode in own or unprivileged):
            return True
    return False


def near(rows: Iterable[Row], own: AbstractSet[str]) -> set[str]:
    """Return the inodes of the task's connections on its machine to processes outside itself."""
    ends = {row[:2]: row.inode for row in rows if row.state not in (_CLOSED, LISTEN, *_HALF_OPEN)}
    others = {ends.get((remote, local), "0") for (local, remote), inode in ends.items() if inode in own}
    return others - own - {"0"}


def _is_loop(address: str) -> bool:
    return len(address) == 8 and address[-2:] == "7F"


def _at(row: Row, ports: AbstractSet[str]) -> bool:
    return not ports.isdisjoint((row.local[1], row.remote[1]))


def _ends(rows: Iterable[Row]) -> set[str]:
    return {port for row in rows for port in (row.local[1], row.remote[1])}


def _packed(address: str) -> Iterator[bytes]:
    """Return the bytes of an address; none for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            yield socket.inet_pton(family, address)


def hexadecimal(packed: bytes) -> str:
    """Return an address as in /proc/net/tcp: words of 32 bits in the machine's own order."""
    words = (packed[i : i + 4] for i in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def parse(table: str) -> Iterator[Row]:
    """Return the lines of /proc/net/tcp, or of tcp6."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9:
            ends = (end[24:] if end.startswith(_MAPPED) else end for end in fields[1:3])
            local, remote = ((end[:-5], end[-4:]) for end in ends)
            yield Row(local, remote, fields[3], fields[9], int(fields[7]))


def tables(pid: int) -> Iterator[Row]:
    """Return the connections in a process's network namespace."""
    for table in ("tcp", "tcp6"):
        yield from parse(procs.text(f"/proc/{pid}/net/{table}"))


def _sockets(pids: Iterable[int]) -> Iterator[str]:
    for pid in pids:
        for fd in lenient.listed(f"/proc/{pid}/fd"):
            name = lenient.link(f"/proc/{pid}/fd/{fd}")
            if name.startswith("socket:["):
                yield name[8:-1]
