"""What a finding is, and what the rules may look at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from orchestrator.findings.reads import Reading
from orchestrator.findings.sourcefile import SourceFile
from orchestrator.model import Role, RunPlan

PAGE = "docs/lint.md"


@dataclass(frozen=True)
class Finding:
    """One thing that will probably go wrong, and what to do; it stops nothing."""

    code: str
    what: str
    fix: str
    path: str = ""  # of the program's file
    line: int = 0

    def __str__(self) -> str:
        where = f" {self.path}, line {self.line}:" if self.path else ""
        return f"{self.code}{where} {self.what}; {self.fix} ({PAGE}#{self.code.lower()})"

    def as_json(self) -> dict[str, str | int]:
        return {"code": self.code, "path": self.path, "line": self.line, "what": self.what, "fix": self.fix}


@dataclass(frozen=True)
class Scene:
    """What the rules may look at."""

    plan: RunPlan
    sources: tuple[SourceFile, ...]  # the program first
    read: Callable[[str], str | None]  # a file that is sent, by its path from where the tasks run
    sent: Collection[str] = ()
    unsent: tuple[str, ...] = ()  # arguments that are paths here, of files that are not sent
    readings: tuple[Reading, ...] = ()  # paths in the program that are there here
    shell: SourceFile | None = None  # what a shell reads: a script, or the words of `bash -c`
    installs: tuple[str, ...] | None = None  # the `packages` of an [env] of nothing else
    sharded: bool = False  # `auto_shard` is not "off"
    one_folder: bool = False  # the hosts' working folders are one, which only they can tell
    apart: bool = False  # each host has a working folder of its own, which only they can tell

    @cached_property
    def workers(self) -> int:
        """The tasks that train together."""
        return sum(task.id.role in (Role.CHIEF, Role.WORKER) for task in self.plan.tasks)

    @cached_property
    def ps(self) -> bool:
        return Role.PS.value in self.plan.cluster

    @cached_property
    def spread(self) -> bool:
        """Whether several workers train by MultiWorkerMirroredStrategy, as far as the text tells."""
        made = any(source.names("MultiWorkerMirroredStrategy") for source in self.sources)
        return made and self.workers > 1 and not self.ps


def each_strategy(source: SourceFile) -> Iterator[int]:
    """Where a MultiWorkerMirroredStrategy is surely made: places in `source.steps`."""
    for place, step in enumerate(source.steps):
        if source.called(step).endswith(".MultiWorkerMirroredStrategy"):
            yield place
