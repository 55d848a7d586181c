"""GPUs of this machine: what nvidia-smi shows, who uses them, and what the kernel's log says of them."""

from __future__ import annotations

import os
import re
import time
from typing import Any

from ..base import lenient, procs, program
from ..serve.agent import Agent, Request

# The name comes last: it may have a comma. A driver refuses the whole question for a field it does not know.
_FIELDS = (
    "index,uuid,pci.bus_id,driver_version,memory.total,memory.used,persistence_mode,temperature.gpu,pstate,"
    "utilization.gpu,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,"
    "clocks_throttle_reasons.active,ecc.errors.uncorrected.volatile.total,retired_pages.pending,"
    "remapped_rows.pending,remapped_rows.failure,gpu_recovery_action,name"
)
_REFUSED = re.compile(r'Field "(\w+)[^"]*" is not a valid field')
_XID = re.compile(
    r"\[ *([0-9]+\.[0-9]+)\].{,20}NVRM: Xid \((?:PCI:)?([\w:]+)[^)]*\): ([0-9]{1,6})[, ]*(.{,200})"
)
_MOST = 64  # GPUs, processes and messages
_IDLE = 300  # MiB that a display takes, or the driver itself


def look(agent: Agent, request: Request) -> dict[str, Any]:
    """Ask nvidia-smi once, and again only without what its driver does not know."""
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
    """Name a process that computes on a GPU, and whose it is, as far as that can be seen from here."""
    run = procs.marks(pid).get(procs.COOKIE, "").partition("/")[0]
    return (
        f"pid {pid} {procs.name(pid)} ({'run ' + run + ', ' if run else ''}user {_owner(pid) or 'unknown'})"
    )


def _owner(pid: int) -> str:
    uid = procs.owner(pid)
    return lenient.user(uid) if uid >= 0 else ""


def _others(agent: Agent) -> list[tuple[str, str, str, int]]:
    """Tasks that are not in our state folder: whose, of which run, which, and since when (ns)."""
    table, known, found = procs.scan(), agent.paths.runs(), []
    started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for one in (one for one in table if procs.name(one.pid) == procs.SUPERVISOR):
        cookies = [procs.marks(child.pid).get(procs.COOKIE, "") for child in table if child.ppid == one.pid]
        run, *names = max(cookies, default="").split("/")[:-1] or [""]
        if run not in known if run else not procs.is_own(one.pid):
            since = started + one.start_ticks / os.sysconf("SC_CLK_TCK")
            found.append((_owner(one.pid), run, "/".join(names[1:]), int(since * 1e9)))
    return found[:_MOST]


def _xids() -> list[tuple[int, str, int, str]]:
    """Errors of GPUs in the kernel's log, the last ones: when (ns), which GPU, code, words.

    There are none where this user may not read it.
    """
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC_RAW)  # as the log's clock, not slewed
    found = _XID.findall(program.run_program(["dmesg"]) or "")[-_MOST:]
    return [(int((booted + float(at)) * 1e9), bus, int(code), text) for at, bus, code, text in found]
