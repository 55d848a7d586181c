"""The leases of ports, which keep two runs apart.

A lease is a flock on leases/<port>, and a claim that all users of the machine see. The agent holds both, and
so do the guards of tasks started for that port: it lasts as long as the last of them. The text in the file
counts only while it is locked.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from ..base import locks, turnstile
from ..base.paths import Paths
from ..serve.agent import Agent, Request

_UNKNOWN = {"run": None, "task": None, "owner": None, "since": None}


def lease(agent: Agent, request: Request) -> dict[str, Any]:
    """Take all ports for a run, or none and say who has them.

    One that an earlier agent of the same run still holds, or a task that it has started, is taken when the
    next task is started for it.
    """
    wanted = {int(port): task for port, task in request["ports"].items()}
    taken: dict[int, tuple[int, int]] = {}
    conflicts: list[dict[str, Any]] = []
    try:
        for port in wanted:
            if port not in agent.leases:
                found, holder = _take(agent.paths.lease(port), port, locks.GLANCE)
                if found is not None:
                    taken[port] = found
                elif holder["run"] != request["run"]:
                    conflicts.append({"port": port, **holder})
    except OSError:
        _let_go(taken)
        raise
    if conflicts:
        _let_go(taken)
        return {"taken": [], "conflicts": conflicts}
    agent.leases.update(taken)
    for port, task in wanted.items():
        text = {"run": request["run"], "task": task, "owner": request["owner"], "since": time.time()}
        if port in agent.leases:
            _write(agent.leases[port][0], text)
        else:
            agent.rooms.setdefault("awaited", {})[port] = text
    return {"taken": sorted(port for port in wanted if port in agent.leases), "conflicts": []}


def held(agent: Agent, port: int) -> tuple[int, ...]:
    """The descriptors of a lease, to be handed to the port's task; none for a port that we do not have."""
    text = agent.rooms.get("awaited", {}).pop(port, None)
    if text is not None:  # by now its earlier holder may have let go of it
        found, holder = _take(agent.paths.lease(port), port, 0.0)
        if found is not None:
            agent.leases[port] = found
            _write(found[0], text)
        elif holder["run"] == text["run"]:
            agent.rooms["awaited"][port] = text
    return agent.leases.get(port, ())


def _take(path: str, port: int, patience: float) -> tuple[tuple[int, int] | None, dict[str, Any]]:
    """Take a port's lock and its claim; else return None and the holder. Raise OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not locks.take(fd, patience):
            holder = _text(fd)
        else:  # whoever has just let go of the one is about to let go of the other
            return (fd, turnstile.pass_through(turnstile.LEASE, port, patience)), {}
    except turnstile.Taken as other:
        holder = {**_UNKNOWN, "owner": other.user}
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None, holder


def _let_go(taken: dict[int, tuple[int, int]]) -> None:
    for fds in taken.values():
        for fd in fds:
            os.close(fd)


def leased(port: int, paths: Paths | None, asker: str = "") -> dict[str, Any] | None:
    """The lease of another run than the asking one; of another user's run only the user is known."""
    found = lease_of(port, paths) if paths is not None else None
    if found is not None:
        return None if found["run"] == asker else found
    user = turnstile.holder(turnstile.LEASE, port)
    return None if user is None else {**_UNKNOWN, "owner": user}


def lease_of(port: int, paths: Paths) -> dict[str, Any] | None:
    """Return what a lease says that somebody holds; None for a free one."""
    path = paths.lease(port)
    try:
        if not locks.is_taken(path):
            return None
        with open(path, "rb") as file:
            return _text(file.fileno())
    except OSError:
        return None


def _text(fd: int) -> dict[str, Any]:
    """Return what a lease says; unknown where its holder has not written yet, or it is damaged."""
    known: dict[str, Any] = dict(_UNKNOWN)
    try:
        found = json.loads(os.pread(fd, 1 << 16, 0))
    except (ValueError, RecursionError):
        return known
    if isinstance(found, dict):
        known.update((name, found[name]) for name in ("run", "task", "owner") if type(found.get(name)) is str)
        since = found.get("since")
        if isinstance(since, (int, float)) and 0 <= since <= 1e12:
            known["since"] = float(since)
    return known


def _write(fd: int, text: dict[str, Any]) -> None:
    data = json.dumps(text).encode()
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))
