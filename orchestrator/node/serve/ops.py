"""The agent's process, and its table of operations: the file for each, in the loop or in a child.

A function receives (agent, request). In the loop it returns the result, or None if it replies later; in a
child it returns a result, or a result and a payload.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time

from ..base import lenient, procs, trust
from . import frames
from .agent import IDLE, Agent, Request
from .frames import Json

HERE = None  # in the loop: must return at once

# The name of this package differs on the nodes.
_NODE = __name__.rpartition("serve.")[0]

# op -> (module, function, seconds that a child may take)
OPS = {
    "ping": ("serve.ops", "ping", HERE),
    "facts": ("look.facts", "facts", 85.0),
    "imports": ("look.facts", "imports", 300.0),
    "gpus": ("look.gpus", "look", 60.0),
    "share": ("stock.work", "share", 30.0),
    "listen": ("look.mesh", "listen", HERE),
    "unlisten": ("look.mesh", "unlisten", HERE),
    "probe": ("look.mesh", "probe", 120.0),
    "lease": ("task.leases", "lease", HERE),
    "join_queue": ("task.leases", "join_queue", HERE),
    "store_look": ("stock.store", "look", 3600.0),
    "store_begin": ("stock.store", "begin", HERE),
    "store_put": ("stock.store", "put", HERE),
    "store_have": ("stock.store", "have", HERE),
    "store_seal": ("stock.store", "seal", HERE),
    "store_drop": ("stock.store", "drop", HERE),
    "files_list": ("disk.listing", "listing", 600.0),
    "files_get": ("disk.listing", "get", 600.0),
    "files_digest": ("disk.listing", "digest", 600.0),
    "env_look": ("stock.envs", "look", 60.0),
    "env_find": ("stock.envs", "find", 60.0),
    "env_make": ("stock.envs", "make", HERE),
    "env_progress": ("stock.envs", "progress", HERE),
    "work_make": ("stock.work", "make", 600.0),
    "work_look": ("stock.work", "look", 600.0),
    "standby": ("task.standby", "prepare", HERE),
    "standby_keep": ("task.standby", "keep", HERE),
    "start": ("task.tasks", "start", HERE),
    "type": ("task.follow", "type_in", HERE),
    "stop": ("task.tasks", "stop", HERE),
    "sweep": ("task.tasks", "sweep", 60.0),
    "follow": ("task.follow", "follow", HERE),
    "unfollow": ("task.follow", "unfollow", HERE),
    "states": ("task.tasks", "states", 60.0),
    "stacks": ("look.stacks", "stacks", 60.0),
    "vitals_ask": ("look.stacks", "vitals", 20.0),
    "keep": ("task.tasks", "keep", HERE),
    "exec": ("task.command", "start", HERE),
    "exec_end": ("task.command", "end", HERE),
    "clean_look": ("stock.clean", "look", 60.0),
    "clean": ("stock.clean", "clean", 1800.0),
}


def serve(agent: Agent, request: Request) -> None:
    """Reply to a request, now or later."""
    module, name, seconds = OPS[request.op]
    function = getattr(importlib.import_module(_NODE + module), name)
    if seconds is not HERE:
        agent.in_child(request, lambda: function(agent, request), seconds=seconds)
        return
    result = function(agent, request)
    if result is not None:
        agent.reply(request, result)


def ping(_agent: Agent, _request: Request) -> Json:
    return {"time_ns": time.time_ns()}


def beat(agent: Agent, every: float) -> None:
    """Send a sign of life every `every` seconds from now on."""

    def once() -> None:
        if agent.outbox.room:  # a stalled reader needs only one of them
            agent.send({"beat": True})
        agent.loop.after(every, once)

    agent.loop.after(every, once)


def main(config: Json, requests: bytes = b"") -> int:
    """Serve until the controller is gone, first the buffered `requests`; return the exit status.

    stdin and stdout are reserved for the protocol; everything else prints to stderr.
    """
    if "container" in config:
        return int(importlib.import_module(_NODE + "serve.container").main(config))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # If our parent ignored it, the kernel would reap our children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if "SLURM_STEP_ID" in os.environ:  # the tasks get these too; this process has to report how they end
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    trust.tighten_umask()
    stdin, stdout = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    try:
        agent = Agent(config, stdin, stdout, serve)
        agent.outbox.put(frames.MARKER + frames.encode({"hello": hello(agent)}))
        beat(agent, config.get("beat", IDLE))
        agent.serve(requests)
        if agent.keepers:
            importlib.import_module(_NODE + "task.tasks").leave(agent)
    except BaseException:  # shown to whoever reads stderr
        sys.excepthook(*sys.exc_info())
        return 1
    return int(agent.failed)


def hello(agent: Agent) -> Json:
    error = agent.state_error
    place = None if error else os.stat(agent.paths.root)
    return {
        "python": sys.version.split()[0],
        "user": lenient.user(os.getuid()),
        "boot_id": procs.text("/proc/sys/kernel/random/boot_id").strip(),
        "netns": lenient.link("/proc/self/ns/net"),
        "time_ns": time.time_ns(),
        "state": agent.state,
        "state_place": f"{place.st_dev}:{place.st_ino}" if place else "",
        "state_error": None if error is None else error.as_dict(),
    }
