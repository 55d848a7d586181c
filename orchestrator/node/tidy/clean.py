"""Proves that a machine holds nothing of ended runs, and removes what a crash left and what is old.

Dry, it changes nothing and tells what it would do; but states are made true in any case, as by every look.
"""

from __future__ import annotations

import os
import time

from ..base.annotations import Any
from ..base.paths import absolute
from ..disk import incoming
from ..disk.measuring import Folder, measure
from ..serve.agent import Agent, Request
from . import leftovers
from .prune import Rules, prune


def look(agent: Agent, _request: Request) -> dict[str, Any]:
    """The runs that are alive here, and all that have a state."""
    return {"alive": sorted(leftovers.alive(agent.paths)), "known": agent.paths.runs()}


def clean(agent: Agent, request: Request) -> dict[str, Any]:
    """Look, or look and remove, in a child of the agent."""
    paths = agent.paths
    workdir = absolute(request["workdir"])
    keep_bytes = request.get("keep_bytes")
    rules = Rules(
        alive=frozenset(request["alive"]) | leftovers.alive(paths),
        known=frozenset(request["known"]),
        older=float(request["older"]),
        keep_bytes=None if keep_bytes is None else int(keep_bytes),
        shared=bool(request["shared"]),
        work=bool(request["work"]),
        envs=None if request.get("envs") is None else frozenset(map(str, request["envs"])),
        dry=bool(request["dry"]),
    )
    found = leftovers.find(paths, rules.dry)
    dead = [measure(folder) for folder in incoming.dead(paths)]
    if not rules.dry:
        incoming.remove_dead(paths)
    folders = prune(paths, workdir, rules)
    _add(folders["scraps"], dead)
    return {**found, "folders": folders}


def _add(scraps: dict[str, Any], dead: list[Folder]) -> None:
    """Count what dead receivers left among the scraps, once."""
    for folder in dead:
        if not any(one["name"] == os.path.basename(folder.path) for one in scraps["gone"]):
            gone = {"name": os.path.basename(folder.path), "bytes": folder.size}
            scraps["gone"].append({**gone, "idle": max(0.0, time.time() - folder.used)})
