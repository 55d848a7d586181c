"""Modules, imported on a node as a task of the job would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.wire.fields import Count, Reply, Signal, Words
from orchestrator.wire.request import Request, expect


class Module(Reply, frozen=True):
    """A module that was imported, or why it could not be."""

    name: Words
    version: Words | None
    error: Words
    path: Words = ""


class Imported(Reply, frozen=True):
    modules: tuple[Module, ...]  # up to the first that fails
    limits: dict[Words, Count | None]  # nofile, as, nproc; None: unlimited
    gpus: Count | None  # that TensorFlow sees
    threads: Count | None  # that this user has on the machine
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
        expect({one.name for one in reply.modules} <= set(self.modules), "it imported what nobody asked for")
