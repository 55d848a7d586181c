"""Leases of ports, which no two runs of a user share, and the queue of a machine that users share.

A lease is a flock on leases/<port>. The agent holds it, and so do the guards of tasks started for that port:
it lasts as long as the last of them. The text in the file counts only while it is locked. Other users cannot
see it: to them, the ports of a run are part of its place in the queue.

A place in the queue is a socket in the abstract namespace, whose name identifies its owner. It needs no
folder that all users may write to, everybody can read the names in /proc/net/unix, and it vanishes with its
last holder: the agent, or a guard of the tasks that it has started. A user who forges a name can only make
others wait.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
import zlib
from contextlib import contextmanager
from typing import Iterator, NamedTuple

from ..base import locks
from ..serve.agent import Agent, Request
from ..serve.frames import Json

_OURS = "orch-line/"
_ROOM = "queue"
_UNKNOWN: Json = {"run": None, "task": None, "owner": None}


def lease(agent: Agent, request: Request) -> Json:
    """Take all ports for a run, or none, and return the holders of those that are taken.

    A port that an earlier agent of the same run still holds, or one of its tasks, is not a conflict.
    """
    tasks = {int(port): task for port, task in request["ports"].items()}
    mine = _place_of(request)._replace(runs=True, low=min(tasks, default=0), high=max(tasks, default=-1))
    with _turn(mine.machine, locks.GLANCE) as granted:
        conflicts = _take(agent, request, tasks, mine) if granted else dict.fromkeys(tasks, _UNKNOWN)
    return {"conflicts": [{"port": port, **holder} for port, holder in conflicts.items()]}


def _take(agent: Agent, request: Request, tasks: dict[int, str], mine: Place) -> dict[int, Json]:
    taken: list[int] = []
    others = [place for place in places() if place.machine == mine.machine and not is_of(place, mine.owner)]
    conflicts: dict[int, Json] = {
        port: {"run": place.run, "task": None, "owner": place.owner}
        for port in tasks
        for place in others
        if place.low <= port <= place.high
    }
    for port in tasks:
        if port not in agent.leases:
            fd = os.open(agent.paths.lease(port), os.O_RDWR | os.O_CREAT, 0o600)
            if locks.take(fd, locks.GLANCE):
                agent.leases[port] = fd
                taken.append(port)
                continue
            holder = _text(fd)
            os.close(fd)
            if holder["run"] != request["run"]:
                conflicts[port] = holder
    if conflicts:
        for port in taken:
            os.close(agent.leases.pop(port))
        return conflicts
    hold_place(agent, mine)  # also without --wait: runs in the queue wait for this run
    for port, task in ((port, task) for port, task in tasks.items() if port in agent.leases):
        data = json.dumps({"run": request["run"], "task": task, "owner": request["owner"]}).encode()
        os.pwrite(agent.leases[port], data, 0)
        os.ftruncate(agent.leases[port], len(data))
    return {}


def leased(agent: Agent, port: int, asker: str) -> Json | None:
    """Return the lease of a different run than the requesting one; None for a free port."""
    if agent.state_error is not None:
        return None
    path = agent.paths.lease(port)
    try:
        if not locks.is_taken(path):
            return None
        with open(path, "rb") as file:
            holder = _text(file.fileno())
    except OSError:
        return None
    return None if holder["run"] == asker else holder


def _text(fd: int) -> Json:
    """Return the holder of a lease; unknown if it has not written its name yet."""
    try:
        return {**_UNKNOWN, **json.loads(os.pread(fd, 1 << 16, 0))}
    except (ValueError, TypeError):
        return _UNKNOWN


# --- the queue ---


class Place(NamedTuple):
    machine: str  # abbreviates a loopback address, which counts as a separate machine; otherwise empty
    since: float  # when it was launched, seconds since the epoch, by the launching machine's clock
    run: str
    runs: bool  # the run uses the machine; otherwise it waits in the queue
    owner: str
    low: int = 0  # its ports, while it uses the machine
    high: int = -1


def join_queue(agent: Agent, request: Request) -> Json:
    """Enter the queue, or with `go` take the machine if no run is ahead; return the runs that are ahead."""
    mine = _place_of(request)
    if not request["go"]:
        hold_place(agent, mine)
        return {"ahead": [], "granted": False}
    with _turn(mine.machine) as granted:
        if not granted:
            return {"ahead": [], "granted": False}
        others = [place for place in places() if place.machine == mine.machine and place.run != mine.run]
        ahead = [place for place in others if place.runs or (place.since, place.run) < (mine.since, mine.run)]
        if not ahead:
            hold_place(agent, mine._replace(runs=True))
    queue = [{"since": place.since, "run": place.run, "owner": place.owner} for place in ahead]
    return {"ahead": queue[:20], "granted": not ahead}


@contextmanager
def _turn(machine: str, patience: float = 0.0) -> Iterator[bool]:
    """Lock the queue for a decision, for runs of all users; yield False while another run has it locked."""
    deadline = time.monotonic() + patience
    with socket.socket(socket.AF_UNIX) as turn:
        while True:
            try:
                turn.bind("\0orchestrate-turn/" + machine)
            except OSError:
                if time.monotonic() < deadline:
                    time.sleep(0.005)
                    continue
                yield False
            else:
                yield True
            return


def _place_of(request: Request) -> Place:
    # Rounded as in the socket's name, so that two runs agree on which one is ahead.
    machine, since = short(str(request["machine"])), round(float(request["since"]), 3)
    return Place(machine, since, str(request["run"]), False, str(request["owner"]))


def plain(owner: str) -> str:
    """Return an owner as written in the name of a place."""
    return re.sub(r"[^A-Za-z0-9@.-]", "_", owner)


def is_of(place: Place, owner: str) -> bool:
    """Return True if a place belongs to this owner, whose name may be cut off in it."""
    return plain(owner).startswith(place.owner)


def short(text: str) -> str:
    return f"{zlib.crc32(os.fsencode(text)):08x}"


def hold_place(agent: Agent, place: Place) -> None:
    """Hold this place in the queue and no other."""
    held = agent.rooms.get(_ROOM)
    if held is not None and held[0] == place:
        return
    # Several agents of a run may be on a machine: its entries in hosts.toml, or an earlier one.
    how, unique = f"r{place.low}:{place.high}" if place.runs else "w", os.urandom(4).hex()
    name = f"{_OURS}{place.machine}/{place.since:.3f}/{place.run}/{how}/{unique}/"
    made = socket.socket(socket.AF_UNIX)
    made.bind("\0" + name + plain(place.owner)[: 107 - len(name)])  # the longest name
    agent.rooms[_ROOM] = place, made
    if held is not None:
        held[1].close()


def descriptors(agent: Agent) -> list[int]:
    """Return the sockets that a guard inherits, so that the place lasts as long as its task."""
    held = agent.rooms.get(_ROOM)
    return [] if held is None else [held[1].fileno()]


def places() -> list[Place]:
    with open("/proc/net/unix", encoding="ascii", errors="replace") as file:
        text = file.read(4 << 20)  # bytes
    result = set()
    for row in text.splitlines():
        machine, since, run, how, _, owner = (row.partition(" @" + _OURS)[2].split("/") + [""] * 6)[:6]
        try:
            low, high = map(int, (how[1:] or "0:-1").split(":"))
            place = Place(machine, float(since), run, how[:1] == "r", owner, low, high)
        except ValueError:  # another program's name
            continue
        if 0 < place.since < 1e11:
            result.add(place)
    return sorted(result)
