"""Nodes that lie: plans written into their state folders, and an agent whose answers are altered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.config.load import load
from orchestrator.model import Admission, Host
from orchestrator.phases.connect import for_nodes
from orchestrator.planning import plan
from orchestrator.store.key import seal
from tests.ssh.runs.desk import Desk

RUN = "20991231-235959-evil"  # the newest of all


def forged(desk: Desk, run: str = RUN, **changes: Any) -> dict[str, Any]:
    """A plan as nodes keep it, of a run on every host of the desk; `changes` are its fields."""
    inventory = load(desk.hosts)
    layout = plan.lay_out(inventory, command=("t.py",), env={})
    made = plan.assign(
        inventory, layout, run=run, name="forged", owner="ada@laptop", created=4e9, admission=Admission()
    )
    fields: dict[str, Any] = json.loads(msgspec.json.encode(for_nodes(made)))
    return {**fields, **changes}


def keep_on(host: Host, fields: Mapping[str, Any], run: str | None = None) -> None:
    """Leave a plan on a node as its agent would, or its root."""
    state = Path(host.state or "")
    folder = state / "runs" / (run or fields["run"])
    for path in (state, state / "runs", folder):
        path.mkdir(mode=0o700, exist_ok=True)
    (folder / "run.json").write_text(packed(fields))


def packed(fields: Mapping[str, Any]) -> str:
    """A plan as a node keeps it, without a seal."""
    return seal(json.dumps(fields).encode(), None)
