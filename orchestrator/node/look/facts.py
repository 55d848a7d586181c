"""What preflight wants to know about a machine, in one answer; runs in a child."""

from __future__ import annotations

import os

from ..base import gpus, lenient, procs
from ..base.annotations import Any
from ..base.fault import reason
from ..base.paths import absolute, free_bytes
from ..base.program import run_program
from ..serve.agent import Agent, Request
from ..task import environ
from . import interfaces, processors, python, rscript


def facts(agent: Agent, request: Request) -> dict[str, Any]:
    packages = list(request.get("packages") or ())
    asked = python.ask(request["python"], request.get("setup"), packages)
    state = agent.state
    return {
        **asked,
        "r": rscript.ask(request["python"], request.get("setup")) if request.get("r") else None,
        "rsync": environ.find_program("rsync", os.environb.get(b"PATH", os.defpath.encode())),
        "disk": {
            "state": {"free": free_bytes(state)} if state else None,
            "workdir": _workdir(request["workdir"]),
        },
        "cpus": processors.usable(),
        "load": os.getloadavg()[0],
        "available": _available(),
        "shm": _shm(),
        "gpus": _gpus(),
        "ephemeral": _ephemeral(),
        "kill_user_processes": _kill_user_processes(),
        "ip": _addresses(),
        "interfaces": interfaces.addresses(),
        "gateways": interfaces.gateways(),
    }


def _workdir(path: str) -> dict[str, Any]:
    """The working folder, made if it can be; writable is what a written file proves."""
    path = absolute(path)
    error = ""
    try:
        os.makedirs(path, exist_ok=True)
        _write_something(path)
    except OSError as trouble:
        error = reason(trouble)
    return {"path": path, "writable": not error, "error": error, "free": free_bytes(path)}


def _write_something(folder: str) -> None:
    path = os.path.join(folder, f".orchestrate-{os.uname().nodename}-{os.getpid()}")
    with open(path, "xb") as file:
        try:
            file.write(b"\n" * 4096)
            file.flush()
        finally:
            os.unlink(path)


def _available() -> int | None:
    """Bytes that a process could still get; None where the kernel does not say."""
    found = None
    for line in procs.text("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            found = int(rest.split()[0]) << 10
    limit, used = (procs.text(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdigit() and used.isdigit():
        stat = dict(line.split(" ", 1) for line in procs.text("/sys/fs/cgroup/memory.stat").splitlines())
        cache = int(stat.get("inactive_file", "0"))  # the kernel gives it up first
        left = max(0, int(limit) - int(used) + cache)
        found = left if found is None else min(found, left)
    return found


def _shm() -> int | None:
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return None
    return room.f_bavail * room.f_frsize


def _gpus() -> list[dict[str, Any]]:
    rows = gpus.ask("--query-gpu=index,name", gpus.AWAKE) or ()
    return [{"index": int(index), "name": name} for index, name in rows if index.isdigit()]


def _ephemeral() -> list[int]:
    low, high = (procs.text("/proc/sys/net/ipv4/ip_local_port_range") or "32768 60999").split()
    return [int(low), int(high)]


def _kill_user_processes() -> bool | None:
    """Whether systemd ends what a user leaves running at logout; None when it cannot be found out."""
    lingering = "/var/lib/systemd/linger/" + lenient.user(os.getuid())
    if os.getuid() == 0 or not os.path.isdir("/run/systemd/system") or os.path.exists(lingering):
        return False  # root is excluded by default
    manager = "org.freedesktop.login1"
    said = run_program(
        [
            "busctl",
            "get-property",
            manager,
            "/org/freedesktop/login1",
            manager + ".Manager",
            "KillUserProcesses",
        ]
    )
    return {"b true": True, "b false": False}.get((said or "").strip())


def _addresses() -> list[str]:
    """Every address of this machine, loopback included, as the kernel's own tables list them."""
    found = set()
    address = ""
    for line in procs.text("/proc/net/fib_trie").splitlines():
        fields = line.split()
        if "|--" in fields:
            address = fields[-1]
        elif fields[:1] == ["/32"] and fields[-1] == "LOCAL":
            found.add(address)
    return sorted(found) + sorted(_addresses6())


def _addresses6() -> list[str]:
    import socket

    lines = procs.text("/proc/net/if_inet6").splitlines()
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])) for line in lines]
