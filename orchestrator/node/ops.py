"""The table of operations: which file serves which, and whether in the loop or in a child of its own.

A function gets (agent, request). In the loop it returns the result, or None when it replies later;
in a child it returns a result, or a result and a payload.
"""

from __future__ import annotations

import importlib
import time

from .fault import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    from .agent import Agent, Request

HERE = None  # in the loop: must return at once

# op -> (module, function, seconds that a child may take)
OPS = {
    "ping": ("ops", "ping", HERE),
    "beats": ("ops", "beats", HERE),
    "facts": ("facts", "facts", 60.0),
    "share_write": ("share", "write", 30.0),
    "share_read": ("share", "read", 30.0),
    "share_clean": ("share", "clean", 30.0),
    "listen": ("mesh", "listen", HERE),
    "unlisten": ("mesh", "unlisten", HERE),
    "probe": ("probe", "probe", 120.0),
    "lease": ("ports", "lease", HERE),
    "tree_has": ("trees", "has", 30.0),
    "tree_begin": ("trees", "begin", HERE),
    "tree_tar": ("untar", "receive", HERE),
    "tree_seal": ("trees", "seal", HERE),
    "files_list": ("files", "listing", 600.0),
    "files_open": ("files", "open_stream", HERE),
    "files_more": ("files", "more", HERE),
    "files_close": ("files", "close", HERE),
    "files_begin": ("files", "begin", 600.0),
    "files_put": ("files", "put", HERE),
    "files_swap": ("files", "swap", 3600.0),
    "files_remove": ("files", "take_away", 3600.0),
    "work_make": ("work", "make", 600.0),
    "start": ("tasks", "start", HERE),
    "stop": ("tasks", "stop", HERE),
    "sweep": ("tasks", "sweep", HERE),
    "follow": ("follow", "follow", HERE),
    "unfollow": ("follow", "unfollow", HERE),
    "states": ("runs", "states", 60.0),
    "read": ("runs", "read", 60.0),
    "stacks": ("stacks", "stacks", 60.0),
    "keep": ("runs", "keep", HERE),
    "drop": ("runs", "drop", 300.0),
    "gpu_held": ("leftovers", "gpu_held", 60.0),
    "clean_look": ("clean", "look", 60.0),
    "clean": ("clean", "clean", 1800.0),
}


def serve(agent: Agent, request: Request) -> None:
    """Reply to a request, now or later."""
    if request.op not in OPS:
        raise NodeError("protocol", f"the agent knows no operation {request.op!r}")
    module, name, seconds = OPS[request.op]
    function = getattr(importlib.import_module("." + module, __package__), name)
    if seconds is not HERE:
        agent.in_child(request, lambda: function(agent, request), seconds=seconds)
        return
    result = function(agent, request)
    if result is not None:
        agent.reply(request, result)


def ping(_agent: Agent, _request: Request) -> Dict[str, Any]:
    return {"time_ns": time.time_ns()}


def beats(agent: Agent, request: Request) -> Dict[str, Any]:
    """From now on a sign of life every `every` seconds; asked again, the new pace replaces the old."""
    every = float(request["every"])
    pace = agent.rooms["beats"] = object()

    def beat() -> None:
        if agent.rooms["beats"] is pace:
            if agent.outbox.room:  # a stalled reader needs no pile of them
                agent.send({"beat": time.time_ns()})
            agent.loop.after(every, beat)

    agent.loop.after(every, beat)
    return {}
