"""The table of operations: which file serves which, and whether in the loop or in a child of its own.

A function gets (agent, request). In the loop it returns the result, or None when it replies later;
in a child it returns a result, or a result and a payload.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

from ..base.fault import NodeError
from .agent import Agent, Request

HERE = None  # in the loop: must return at once

# The name of this package differs on the nodes.
_NODE = __name__.rpartition("serve.")[0]

# op -> (module, function, seconds that a child may take)
OPS = {
    "ping": ("serve.ops", "ping", HERE),
    "beats": ("serve.ops", "beats", HERE),
    "facts": ("look.facts", "facts", 85.0),
    "fingerprint": ("look.facts", "fingerprint", 60.0),
    "imports": ("look.facts", "imports", 180.0),
    "share_write": ("look.share", "write", 30.0),
    "share_read": ("look.share", "read", 30.0),
    "share_clean": ("look.share", "clean", 30.0),
    "listen": ("look.mesh", "listen", HERE),
    "unlisten": ("look.mesh", "unlisten", HERE),
    "probe": ("look.probe", "probe", 120.0),
    "lease": ("task.leases", "lease", HERE),
    "store_look": ("stock.store", "look", 3600.0),
    "store_begin": ("stock.store", "begin", HERE),
    "store_put": ("stock.store", "put", HERE),
    "store_have": ("stock.store", "have", HERE),
    "store_seal": ("stock.store", "seal", HERE),
    "store_drop": ("stock.store", "drop", HERE),
    "files_list": ("disk.files", "listing", 600.0),
    "files_get": ("disk.files", "get", 600.0),
    "env_look": ("stock.envs", "look", 60.0),
    "env_find": ("stock.envs", "find", 60.0),
    "env_make": ("stock.envs", "make", HERE),
    "env_progress": ("stock.envs", "progress", HERE),
    "work_make": ("stock.work", "make", 600.0),
    "start": ("task.tasks", "start", HERE),
    "stop": ("task.tasks", "stop", HERE),
    "sweep": ("task.tasks", "sweep", HERE),
    "follow": ("task.follow", "follow", HERE),
    "unfollow": ("task.follow", "unfollow", HERE),
    "states": ("task.tasks", "states", 60.0),
    "stacks": ("look.stacks", "stacks", 60.0),
    "vitals": ("look.vitals", "vitals", 20.0),
    "keep": ("task.tasks", "keep", HERE),
    "gpu_held": ("tidy.leftovers", "gpu_held", 60.0),
    "exec": ("task.command", "start", HERE),
    "exec_end": ("task.command", "end", HERE),
    "clean_look": ("tidy.leftovers", "look", 60.0),
    "clean": ("tidy.leftovers", "clean", 1800.0),
}


def serve(agent: Agent, request: Request) -> None:
    """Reply to a request, now or later."""
    if request.op not in OPS:
        raise NodeError("protocol", f"the agent knows no operation {request.op!r}")
    module, name, seconds = OPS[request.op]
    function = getattr(importlib.import_module(_NODE + module), name)
    if seconds is not HERE:
        agent.in_child(request, lambda: function(agent, request), seconds=seconds)
        return
    result = function(agent, request)
    if result is not None:
        agent.reply(request, result)


def ping(_agent: Agent, _request: Request) -> dict[str, Any]:
    return {"time_ns": time.time_ns()}


def beats(agent: Agent, request: Request) -> dict[str, Any]:
    """Send a sign of life every `every` seconds; asked again, the new pace replaces the old."""
    every = max(0.01, min(float(request["every"]), 3600.0))
    pace = agent.rooms["beats"] = object()

    def beat() -> None:
        if agent.rooms["beats"] is pace:
            if agent.outbox.room:  # a stalled reader needs no pile of them
                agent.send({"beat": time.time_ns()})
            agent.loop.after(every, beat)

    agent.loop.after(every, beat)
    return {}
