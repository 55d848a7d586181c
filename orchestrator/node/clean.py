"""Proves that a machine holds nothing of ended runs, and removes what a crash left and what is old.

Dry, it changes nothing and tells what it would do; but states are made true in any case, as by every look.
"""

from __future__ import annotations

import os

from . import leftovers
from .prune import Rules, prune

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    from .agent import Agent, Request


def look(agent: Agent, _request: Request) -> Dict[str, Any]:
    """The runs that are alive here, and all that have a state."""
    return {"alive": sorted(leftovers.alive(agent.paths)), "known": agent.paths.runs()}


def clean(agent: Agent, request: Request) -> Dict[str, Any]:
    """Look, or look and remove, in a child of the agent."""
    paths = agent.paths
    workdir = os.path.abspath(os.path.expanduser(request["workdir"]))
    keep_bytes = request.get("keep_bytes")
    rules = Rules(
        alive=frozenset(request["alive"]) | leftovers.alive(paths),
        known=frozenset(request["known"]),
        older=float(request["older"]),
        keep_bytes=None if keep_bytes is None else int(keep_bytes),
        shared=bool(request["shared"]),
        work=bool(request["work"]),
        dry=bool(request["dry"]),
    )
    found = leftovers.find(paths, rules.dry)
    return {**found, "folders": prune(paths, workdir, rules)}
