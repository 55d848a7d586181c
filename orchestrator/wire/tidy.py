"""`clean` on a node: what ended runs have left, and what was removed."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.wire.fields import Count, Name, Pid, Reply, Size, Words
from orchestrator.wire.request import Failure, Request


class RunsHere(Reply, frozen=True):
    alive: tuple[Name, ...]
    known: tuple[Name, ...]


class CleanLook(Request[RunsHere], frozen=True):
    OP = "clean_look"


class Orphan(Reply, frozen=True):
    """A process that an ended task has left."""

    pid: Pid
    argv0: Words
    run: Words
    task: Words


class GpuProcess(Reply, frozen=True):
    """A process that holds memory of a GPU."""

    pid: Pid
    name: Words
    memory: Size | None
    run: Words


class GpusHeld(Reply, frozen=True):
    held: tuple[GpuProcess, ...]


class GpuHeld(Request[GpusHeld], frozen=True, kw_only=True):
    """Ask for the processes of a run's ended tasks that still hold memory of a GPU."""

    OP = "gpu_held"
    run: str


class Gone(Reply, frozen=True):
    name: Words
    bytes: Size


class FolderKind(Reply, frozen=True):
    """The folders of one kind: how many there are, what went or would go, what could not."""

    count: Count
    bytes: Size
    gone: tuple[Gone, ...]
    failed: tuple[Words, ...]


class Folders(Reply, frozen=True):
    state: FolderKind
    work: FolderKind
    code: FolderKind
    data: FolderKind
    envs: FolderKind
    scraps: FolderKind

    def each(self) -> tuple[FolderKind, ...]:
        return (self.state, self.work, self.code, self.data, self.envs, self.scraps)


class Cleaned(Reply, frozen=True):
    orphans: tuple[Orphan, ...]
    killed: tuple[Orphan, ...]
    trouble: tuple[Failure, ...]
    folders: Folders


class Clean(Request[Cleaned], frozen=True, kw_only=True):
    """Remove what may go; `alive` and `known` are runs as all hosts together know them."""

    OP = "clean"
    HEAD = 16 << 20
    workdir: str
    alive: Sequence[str]
    known: Sequence[str]
    older: float
    shared: bool
    work: bool
    dry: bool
