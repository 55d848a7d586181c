"""Properties of this machine and login, from the kernel's files: programs would take longer than the rest."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import Any, Dict

from . import lenient, procs
from .paths import free_bytes
from .program import run_program

_LIMITS = ("RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_AS")
_SETTINGS = ("KillUserProcesses", "RemoveIPC")
_MANAGER = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")


def look() -> Dict[str, Any]:
    system, ports = os.uname(), procs.text("/proc/sys/net/ipv4/ip_local_port_range").split()
    limits = {name: resource.getrlimit(getattr(resource, name))[1] for name in _LIMITS}
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "memory": int(_first("MemTotal", "/proc/meminfo").partition(" ")[0] or 0) << 10,
        "kernel": system.sysname + " " + system.release,
        "processor": _first("model name", "/proc/cpuinfo"),
        "driver": procs.text("/sys/module/nvidia/version").strip(),
        "shm": free_bytes("/dev/shm") if os.path.isdir("/dev/shm") else None,
        "ports": list(map(int, ports)) or None,
        "limits": {name: hard for name, hard in limits.items() if 0 < hard < 1 << 60},
        "logout": [] if lingers() else [setting for setting in _SETTINGS if _is_set(setting)],
    }


def lingers() -> bool:
    """Return True if systemd leaves a user's processes alone after a logout; root is excluded by default."""
    user = lenient.user(os.getuid())
    without = not os.getuid() or not os.path.isdir("/run/systemd/system")
    return without or os.path.exists(f"/var/lib/systemd/linger/{user}")


def _is_set(setting: str) -> bool:
    output = run_program(["busctl", "get-property", *_MANAGER, setting])
    return output is not None and output.strip() == "b true"


def _first(name: str, path: str) -> str:
    """Return the value of the first line `name: value` of a file; "" if there is none."""
    with suppress(OSError), open(path, errors="replace") as lines:
        for line in lines:  # not all of them: for many processors the kernel takes long
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""
