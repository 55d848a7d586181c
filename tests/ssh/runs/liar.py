"""Nodes that lie: plans written into their state folders, and an agent whose answers are altered."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from orchestrator import config
from orchestrator.model import Admission, Host
from orchestrator.phases.connect import for_nodes
from orchestrator.planning import plan
from orchestrator.planning.seal import seal
from tests.ssh.runs.desk import Desk

RUN = "20991231-235959-evil"  # the newest of all

# Runs the real agent and puts what it is told into every answer that lists runs.
LIAR = """#!{python}
import json, subprocess, sys
sys.path.insert(0, {root!r})
from orchestrator.node.serve import frames
agent = subprocess.Popen([{real!r}, *sys.argv[1:]], stdout=subprocess.PIPE, bufsize=0)
before = b""
while frames.MARKER not in before:
    data = agent.stdout.read(1)
    if not data:
        break
    before += data
out = sys.stdout.buffer
out.write(before)
out.flush()
decoder = frames.Decoder()
while data := agent.stdout.read(65536):
    for header, payload in decoder.feed(data):
        if isinstance(header.get("result"), dict) and "runs" in header["result"]:
            header["result"]["runs"] = json.load(open({lies!r}))
        out.write(frames.encode(header, payload))
    out.flush()
sys.exit(agent.wait())
"""


def forged(desk: Desk, run: str = RUN, **changes: Any) -> dict[str, Any]:
    """A plan as nodes keep it, of a run on every host of the desk; `changes` are its fields."""
    inventory = config.load(desk.hosts)
    layout = plan.lay_out(inventory, command=("t.py",), env={}, environ={})
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


def listed(run: Any, fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """A run in the answer to `states`."""
    text = None if fields is None else packed(fields)
    return {"run": run, "plan": text, "keeper": None, "stopped": False, "tasks": []}


def lie(desk: Desk, runs: list[dict[str, Any]]) -> None:
    """Have the first host answer with these runs, whatever it has."""
    lies = desk.folder / "lies.json"
    lies.write_text(json.dumps(runs))
    first, *others = desk.cluster.hosts
    root = str(Path(__file__).parents[3])
    program = LIAR.format(python=sys.executable, root=root, real=first.agent_python, lies=str(lies))
    liar = desk.program("liar", program)
    desk.write_hosts(desk.cluster.hosts)
    text = desk.hosts.read_text()
    mine = f'agent_python = "{first.agent_python}"'
    assert mine in text
    desk.hosts.write_text(text.replace(mine, f"agent_python = {json.dumps(str(liar))}", 1))
    assert others


def snapshot(desk: Desk, *apart: Path) -> dict[str, str]:
    """Every file, folder and link of the controller but its terminals' output and what is `apart`."""
    found: dict[str, str] = {}
    for folder, folders, files in os.walk(desk.folder):
        here = Path(folder)
        for name in (*folders, *files):
            path = here / name
            if name.startswith(("out-", "err-")) or any(path.is_relative_to(one) for one in apart):
                continue
            mode = path.lstat().st_mode
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path)] = f"{mode:o} {content}"
    return found
