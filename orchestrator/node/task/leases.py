"""The leases of ports, which keep two runs of a user apart, and the line of a machine that users share.

A lease is a flock on leases/<port>. The agent holds it, and so do the guards of tasks started for that
port: it lasts as long as the last of them. The text in the file counts only while it is locked.

A place in line is a socket in the abstract namespace, whose name says whose it is. It needs no folder that
all users may write to, everybody can read the names in /proc/net/unix, and it is gone with its last holder:
the agent, and the guards of the tasks that it has started. A user who lies there keeps others waiting, and
no more.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import time
import zlib
from typing import Any, NamedTuple

from ..base import locks
from ..serve.agent import Agent, Request

_OURS = "orch-line/"
_ROOM = "line"


def lease(agent: Agent, request: Request) -> dict[str, Any]:
    """Take all ports for a run, or none and say who has them.

    One that an earlier agent of the same run still holds, or a task that it has started, is no conflict.
    """
    wanted = {int(port): task for port, task in request["ports"].items()}
    taken: list[int] = []
    conflicts: list[dict[str, Any]] = []
    for port in wanted:
        if port not in agent.leases:
            fd = os.open(agent.paths.lease(port), os.O_RDWR | os.O_CREAT, 0o600)
            if locks.take(fd, locks.GLANCE):
                agent.leases[port] = fd
                taken.append(port)
                continue
            holder = _text(fd)
            os.close(fd)
            if holder["run"] != request["run"]:
                conflicts.append({"port": port, **holder})
    if conflicts:
        for port in taken:
            os.close(agent.leases.pop(port))
        return {"conflicts": conflicts}
    use(agent, request)
    for port, task in ((port, task) for port, task in wanted.items() if port in agent.leases):
        data = json.dumps({"run": request["run"], "task": task, "owner": request["owner"]}).encode()
        os.pwrite(agent.leases[port], data, 0)
        os.ftruncate(agent.leases[port], len(data))
    return {"conflicts": []}


def leased(agent: Agent, port: int, asker: str) -> dict[str, Any] | None:
    """The lease of another run than the asking one; None for a free port."""
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


def _text(fd: int) -> dict[str, Any]:
    """Return what a lease says; unknown where its holder has not written yet."""
    unknown = {"run": None, "task": None, "owner": None}
    try:
        return {**unknown, **json.loads(os.pread(fd, 1 << 16, 0))}
    except (ValueError, TypeError):
        return unknown


# --- the line ---


class Spot(NamedTuple):
    machine: str  # short for a loopback address, which is taken for a machine of its own, or for nothing
    since: float  # seconds since the epoch, by the clock of who launched it
    run: str
    runs: bool  # it has the machine; else it waits for it
    owner: str


def stand_in_line(agent: Agent, request: Request) -> dict[str, Any]:
    """Stand in line, or with `go` leave it for the machine where nobody is ahead; return who is.

    Whoever has the machine is ahead, and whoever has waited for longer.
    """
    mine = _spot(request, float(request["since"]))
    if not request["go"]:
        stand(agent, mine)
        return {"ahead": [], "granted": False}
    with socket.socket(socket.AF_UNIX) as turn:
        try:
            turn.bind("\0orchestrate-turn/" + mine.machine)
        except OSError:  # somebody else looks and decides just now
            return {"ahead": [], "granted": False}
        others = [one for one in _places() if one.machine == mine.machine and one.run != mine.run]
        ahead = [one for one in others if one.runs or (one.since, one.run) < (mine.since, mine.run)]
        if not ahead:
            stand(agent, mine._replace(runs=True))
    told = [{"since": one.since, "run": one.run, "owner": one.owner} for one in ahead]
    return {"ahead": told[:20], "granted": not ahead}


def use(agent: Agent, request: Request) -> None:
    """Have the machine without a wait: those who stand in line wait for it."""
    held = agent.rooms.get(_ROOM)
    if held is None or not held[0].runs:
        stand(agent, _spot(request, time.time())._replace(runs=True))


def _spot(request: Request, since: float) -> Spot:
    return Spot(
        _short(str(request.get("machine", ""))), since, str(request["run"]), False, str(request["owner"])
    )


def _short(text: str) -> str:
    return f"{zlib.crc32(os.fsencode(text)):08x}"


def stand(agent: Agent, place: Spot) -> None:
    """Have this place in line, and no other; an earlier agent of the run may still hold it."""
    held = agent.rooms.get(_ROOM)
    if held is not None and held[0] == place:
        return
    # Several entries of hosts.toml may be the same machine: each has a place of its own.
    how, entry = "r" if place.runs else "w", _short(agent.paths.root)
    name = f"{_OURS}{place.machine}/{place.since:.3f}/{place.run}/{how}/{entry}/"
    made = socket.socket(socket.AF_UNIX)
    try:
        owner = re.sub(r"[^A-Za-z0-9@.-]", "_", place.owner)
        made.bind("\0" + name + owner[: 107 - len(name)])  # the most
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return  # it is held until that one has left; we are asked again
    agent.rooms[_ROOM] = place, made
    if held is not None:
        held[1].close()


def descriptors(agent: Agent) -> list[int]:
    """Return the sockets that a guard inherits, so that the place lasts as long as its task."""
    held = agent.rooms.get(_ROOM)
    return [] if held is None else [held[1].fileno()]


def _places() -> list[Spot]:
    with open("/proc/net/unix", encoding="ascii", errors="replace") as file:
        text = file.read(4 << 20)  # bytes
    found = set()
    for row in text.splitlines():
        machine, since, run, how, _, owner = (row.partition(" @" + _OURS)[2].split("/") + [""] * 6)[:6]
        try:
            place = Spot(machine, float(since), run, how == "r", owner)
        except ValueError:  # another program's name
            continue
        if 0 < place.since < 1e11:
            found.add(place)
    return sorted(found)
