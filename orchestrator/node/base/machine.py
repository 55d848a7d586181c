"""Properties of this machine and login, read from the kernel's files: starting programs takes far longer."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import Any, Dict, List

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
        "logout": [] if lingers() else _settings(),
    }


def lingers() -> bool:
    """Return True if systemd does not end this user's processes after a logout; by default not root's."""
    if not os.getuid() or not os.path.isdir("/run/systemd/system"):
        return True
    return os.path.exists(f"/var/lib/systemd/linger/{lenient.user(os.getuid())}")


def _settings() -> List[str]:
    """Return the settings of systemd that are on, of those that affect processes after a logout."""
    output = run_program(["busctl", "get-property", *_MANAGER, *_SETTINGS]) or ""
    return [name for name, value in zip(_SETTINGS, output.splitlines()) if value == "b true"]  # noqa: B905


def _first(name: str, path: str) -> str:
    """Return the value of the first line `name: value` of a file; "" if there is none."""
    with suppress(OSError), open(path, errors="replace") as lines:
        for line in lines:  # not all of them: for many processors the kernel takes long
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""
