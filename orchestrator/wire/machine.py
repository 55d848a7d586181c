"""Facts of a machine: what preflight judges, what it can import, and what a validation depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta

from orchestrator.wire.fields import Count, Digest, Lines, Name, Reply, Signal, Size, Words
from orchestrator.wire.request import Nothing, Request, expect

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
    """An address of the machine, and what carries it; "" where that is not known."""

    name: Words
    ip: Words


class MachineFacts(Reply, frozen=True):
    python: Python
    setup: Lines  # what the `setup` of [job] and the Python printed as errors
    packages: dict[Words, Words | None]
    r: R | None
    disk: Disks
    gpus: tuple[Gpu, ...]
    addresses: Annotated[tuple[Interface, ...], _MANY]
    answers: dict[Name, Lines]  # of `programs`, by name; "" for one that is missing or fails


class Facts(Request[MachineFacts], frozen=True, kw_only=True):
    OP = "facts"
    python: str
    r: bool
    workdir: str
    packages: Sequence[str]
    setup: str | None
    programs: Mapping[str, Sequence[str]] = {}

    def check(self, reply: MachineFacts) -> None:
        expect(reply.answers.keys() <= self.programs.keys(), "it ran what nobody asked for")


class Module(Reply, frozen=True):
    """A module that was imported, or why it could not be."""

    name: Words
    version: Words | None
    error: Words


class Imported(Reply, frozen=True):
    modules: tuple[Module, ...]  # up to the first that fails
    gpus: Count | None  # that TensorFlow sees
    importing: Words  # what was being imported when it ended
    ended: Words  # why it ended too early, "" when it did not
    signal: Signal | None  # that ended it, and was not ours


class Imports(Request[Imported], frozen=True, kw_only=True):
    """Import these modules as a task of the job would."""

    OP = "imports"
    python: str
    setup: str | None
    env: Mapping[str, str]
    modules: Sequence[str]
    gpus: bool = False

    def check(self, reply: Imported) -> None:
        expect({each.name for each in reply.modules} <= {*self.modules}, "it imported what nobody asked for")


class HostFingerprint(Reply, frozen=True):
    """The state of a host that a validation depends on."""

    digest: Digest


class Fingerprint(Request[HostFingerprint], frozen=True, kw_only=True):
    OP = "fingerprint"
    python: str
    setup: str | None
    env: Mapping[str, str]


class ShareWrite(Request[Nothing], frozen=True, kw_only=True):
    """Leave the host's name in the working folder, for all that see the same one."""

    OP = "share_write"
    workdir: str
    nonce: str
    host: str


class Sharers(Reply, frozen=True):
    hosts: tuple[Words, ...]


class ShareRead(Request[Sharers], frozen=True, kw_only=True):
    OP = "share_read"
    workdir: str
    nonce: str


class ShareClean(Request[Nothing], frozen=True, kw_only=True):
    OP = "share_clean"
    workdir: str
    nonce: str
