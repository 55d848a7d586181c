"""The agent's process: it takes stdin and stdout for its protocol, says what it is, and serves."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from .base import lenient, trust
from .serve import frames, ops
from .serve.agent import Agent

PROTOCOL = 1


def hello(agent: Agent) -> dict[str, Any]:
    error = agent.state_error
    return {
        "protocol": PROTOCOL,
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "user": lenient.user(os.getuid()),
        "boot_id": (lenient.text("/proc/sys/kernel/random/boot_id") or "").strip(),
        "netns": lenient.link("/proc/self/ns/net"),
        "time_ns": time.time_ns(),
        "state": agent.state,
        "state_place": lenient.place(agent.paths.root) if error is None else "",
        "state_error": None if error is None else error.as_dict(),
    }


def main(config: dict[str, Any]) -> int:
    """Serve until the controller is gone; return the process's exit status."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if "SLURM_STEP_ID" in os.environ:  # the tasks get these too; somebody has to tell how they end
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    trust.tighten_umask()
    stdin, stdout = _take_protocol()
    try:
        agent = Agent(config, stdin, stdout, ops.serve)
        agent.outbox.put(frames.MARKER + frames.encode({"hello": hello(agent)}))
        agent.serve()
    except BaseException:  # told to whoever reads stderr
        sys.excepthook(*sys.exc_info())
        return 1
    return int(agent.failed)


def _take_protocol() -> tuple[int, int]:
    """Keep stdin and stdout for the protocol alone; whatever prints, prints to stderr."""
    stdin, stdout = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return stdin, stdout
