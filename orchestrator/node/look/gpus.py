"""GPUs of this machine: nvidia-smi's data, their users, and the kernel's messages about them."""

from __future__ import annotations

import re
import time
from typing import Any

from ..base import lenient, procs, program
from ..serve.agent import Agent, Request
from ..task import leases

# The name comes last, as it may contain a comma. A driver rejects a query with an unknown field completely.
_FIELDS = (
    "index,uuid,pci.bus_id,driver_version,memory.total,memory.used,temperature.gpu,pstate,utilization.gpu,"
    "pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,"
    "clocks_throttle_reasons.active,ecc.errors.uncorrected.volatile.total,retired_pages.pending,"
    "remapped_rows.failure,gpu_recovery_action,name"
)
_REFUSED = re.compile(r'Field "(\w+)[^"]*" is not a valid field')
_XID = re.compile(
    r"\[ *([0-9]+\.[0-9]+)\].{,20}NVRM: Xid \((?:PCI:)?([\w:]+)[^)]*\): ([0-9]{1,6})[, ]*(.{,200})"
)
_MOST = 64  # GPUs, processes and messages
_IDLE = 300  # MiB that a display uses, or the driver itself


def look(agent: Agent, request: Request) -> dict[str, Any]:
    """Query nvidia-smi once, and again only without fields that its driver does not support."""
    ends, fields, unknown = time.monotonic() + request.get("seconds", program.AWAKE), _FIELDS.split(","), ""
    while True:
        fields = [field for field in fields if field.partition(".")[0] != unknown]
        question, seconds = "--query-gpu=" + ",".join(fields), max(0.1, round(ends - time.monotonic(), 1))
        rows, why = program.ask_nvidia(question, seconds)
        match = _REFUSED.search(why)
        if match is None or match[1] in (unknown, "index", "memory", "name", "uuid"):
            break
        unknown = match[1]
    cards = [dict(zip(fields, row)) for row in rows[:_MOST] if row[0].isdecimal() and len(row[0]) < 4]  # noqa: B905
    used = any(int(card["memory.used"]) > _IDLE for card in cards if card["memory.used"].isdecimal())
    users = program.ask_nvidia("--query-compute-apps=gpu_uuid,pid")[0][:_MOST] if used else []
    for card in cards:
        pids = (int(pid) for gpu, pid in users if gpu == card["uuid"] and pid.isdecimal())
        card["users"] = "; ".join(map(_user, pids))
    gpus = [{"index": int(card["index"]), "name": card["name"], "fields": card} for card in cards]
    others = _others(agent) if request.get("others") else []
    return {"gpus": gpus, "gpu_error": why, "xids": _xids() if gpus or why else [], "others": others}


def _user(pid: int) -> str:
    """Return a process that computes on a GPU, and its owner, as far as they are visible."""
    run, uid = procs.marks(pid).get(procs.COOKIE, "").partition("/")[0], procs.owner(pid)
    owner = lenient.user(uid) if uid >= 0 else "unknown"
    return f"pid {pid} {procs.name(pid)} ({'run ' + run + ', ' if run else ''}user {owner})"


def _others(agent: Agent) -> list[tuple[str, str, int]]:
    """Return the runs that use this machine from other state folders: whose, which, since when (ns)."""
    own, places = agent.paths.runs(), [place for place in leases.places() if place.runs]
    others = {(place.owner, place.run, int(place.since * 1e9)) for place in places if place.run not in own}
    return sorted(others)[:_MOST]


def _xids() -> list[tuple[int, str, int, str]]:
    """Return the last GPU errors in the kernel's log, if readable: when (ns), which GPU, code, text."""
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC_RAW)  # as the log's clock, not slewed
    messages = _XID.findall(program.run_program(["dmesg"]) or "")[-_MOST:]
    return [(int((booted + float(at)) * 1e9), bus, int(code), text) for at, bus, code, text in messages]
