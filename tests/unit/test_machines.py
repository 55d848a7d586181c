"""Rows of `status --machines`: what hosts tell, and the table."""

from __future__ import annotations

from typing import Any

from orchestrator import wire
from orchestrator.render.tables import MachineRow, machine_rows, machines_table
from orchestrator.run.view import View
from orchestrator.run.vitals import Vitals
from orchestrator.store.folder import encode_plan
from orchestrator.store.key import seal
from tests.golden import matches_golden
from tests.unit import plans

NOW = 1_700_000_000
PLAN = plans.make(plans.host("a", devices=("0", "1")), command=("true",))
EVIL = "\x1b[2J\u202e" + "x" * 5000


def status(run: str, plan: str, attempt: str = "1", *, alive: bool = True) -> dict[str, Any]:
    state = {"state": "running", "started_ns": (NOW - 90) * 10**9}
    task = {"attempt": attempt, "task": "worker/0", "state": state, "alive": alive}
    return {"run": run, "plan": plan, "keeper": None, "stopped": False, "tasks": [task]}


def test_who_uses_a_host_is_a_row_each() -> None:
    ours = seal(encode_plan(PLAN), None)
    users = "pid 7 python (user bob); pid 8 x (run r1, user me)"
    gpu = {"index": 1, "name": "A100", "fields": {"users": users}}
    since = (NOW - 3600) * 10**9
    told: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
        "ours": ([status("r1", ours)], {"gpus": [gpu]}),
        "validation": ([status("r1", ours, "validate")], {}),
        "over": ([status("r1", ours, alive=False)], {}),
        "other": ([], {"others": [["bob", "", "", since], ["ann", "r7", "worker/3", since]]}),
        "liar": ([status("r2", EVIL)], {"others": [[EVIL, EVIL, EVIL, since]]}),
    }
    rows: list[MachineRow] = []
    for name, (runs, look) in told.items():
        states = wire.read({"runs": runs}, wire.Runs, "states")
        seen = wire.read({"gpus": [], **look}, wire.GpuLook, "gpus")
        rows += machine_rows(name, states, seen, lambda _: (View(), Vitals()), 30.0)
    rows.append(MachineRow("gone", said="cannot be reached: no route to host"))
    lines = machines_table(rows, json=False, now=NOW, width=None)
    matches_golden("render/machines.txt", "\n".join(lines) + "\n")
    assert "\x1b" not in "".join(machines_table(rows, json=True, now=NOW, width=80))
