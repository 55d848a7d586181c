"""The leases of ports, which keep two runs of a user apart.

A lease is a flock on leases/<port>. The agent holds it, and so do the guards of tasks started for that port:
it lasts as long as the last of them. The text in the file counts only while it is locked.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ..base import locks
from ..serve.agent import Agent, Request
from . import line


def lease(agent: Agent, request: Request) -> dict[str, Any]:
    """Take all ports for a run, or none and say who has them.

    One that an earlier agent of the same run still holds, or a task that it has started, is no conflict.
    """
    wanted = {int(port): task for port, task in request["ports"].items()}
    taken: list[int] = []
    conflicts: list[dict[str, Any]] = []
    for port in wanted:
        if port not in agent.leases:
            fd = os.open(agent.paths.lease(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
    line.use(agent, request)
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
