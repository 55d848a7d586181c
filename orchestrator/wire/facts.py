"""What a machine is like: preflight's facts, and the fingerprint that a validation depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta

from orchestrator.wire.fields import Count, Digest, Port, Real, Reply, Size, Words
from orchestrator.wire.request import Request

_MANY = Meta(max_length=10_000)  # addresses of one machine


class Python(Reply, frozen=True):
    ok: bool
    path: Words | None
    version: Words | None
    error: Words
    managed: bool = False  # by the distribution: pip refuses to install into it (PEP 668)


class R(Reply, frozen=True):
    version: Words | None
    reticulate: Words | None
    jsonlite: Words | None
    error: Words


class Disk(Reply, frozen=True):
    free: Size


class Workdir(Reply, frozen=True):
    path: Words
    writable: bool
    error: Words
    free: Size


class Disks(Reply, frozen=True):
    state: Disk | None
    workdir: Workdir


class Gpu(Reply, frozen=True):
    index: Count
    name: Words


class Interface(Reply, frozen=True):
    """An address of the machine, and what carries it."""

    name: Words
    ip: Words


class MachineFacts(Reply, frozen=True):
    python: Python
    packages: dict[Words, Words | None]
    r: R | None
    rsync: Words | None
    disk: Disks
    gpus: tuple[Gpu, ...]
    ephemeral: tuple[Port, Port]
    kill_user_processes: bool | None
    ip: Annotated[tuple[Words, ...], _MANY]
    interfaces: Annotated[tuple[Interface, ...], _MANY] = ()
    gateways: Annotated[tuple[Words, ...], _MANY] = ()
    available: Size | None = None  # bytes of memory that a task could get
    shm: Size | None = None  # bytes free in /dev/shm
    cpus: Real = 0.0  # 0: not known
    load: Real = 0.0


class Facts(Request[MachineFacts], frozen=True, kw_only=True):
    OP = "facts"
    python: str
    r: bool
    workdir: str
    packages: Sequence[str]
    setup: str | None


class HostFingerprint(Reply, frozen=True):
    """What a validation depends on, each part as a digest; the names are those that a person reads."""

    machine: Digest
    devices: Digest
    python: Digest
    packages: Digest
    environment: Digest
    data: Digest


class Fingerprint(Request[HostFingerprint], frozen=True, kw_only=True):
    OP = "fingerprint"
    python: str
    setup: str | None
    env: Mapping[str, str]
    data: Sequence[str]  # files and folders; ~ and variables are the node's
