"""What `clean` says, as lines or as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from orchestrator import wire
from orchestrator.errors import ExitStatus, HostError
from orchestrator.render import fold
from orchestrator.render.errors import block
from orchestrator.render.grid import grid
from orchestrator.store.prune import Pruned
from orchestrator.text import count, size, utf8

_KINDS = ("state", "code", "data", "envs", "work")
_RARE = ("data", "envs")  # columns that are there where there is any


@dataclass(frozen=True)
class Cleaning:
    """What was found and done."""

    hosts: Mapping[str, wire.Cleaned]  # a node's reply, by host
    unreachable: Mapping[str, HostError]
    here: Pruned
    alive: frozenset[str]
    work: bool
    dry: bool
    envs: Sequence[str] | None = None  # those that were to stay

    @property
    def left(self) -> bool:
        """Whether something of an ended run is still there."""
        return bool(self.here.failed) or any(_left(reply) for reply in self.hosts.values())

    @property
    def status(self) -> ExitStatus:
        if self.unreachable:
            return ExitStatus.CLUSTER
        return ExitStatus.RUN_FAILED if self.left else ExitStatus.OK


def lines(done: Cleaning, *, json: bool) -> list[str]:
    if json:
        return [msgspec.json.encode(utf8(line)).decode() for line in _facts(done)]
    return [*_found(done), *_table(done), *_end(done)]


def working(hosts: Mapping[str, wire.Cleaned]) -> str:
    """What of working folders would go, in words; empty for nothing. Who shares one counts it too."""
    gone = {name: entries for name, reply in hosts.items() if (entries := reply.folders.work.gone)}
    if not gone:
        return ""
    runs = {entry.name for entries in gone.values() for entry in entries}
    total = sum(entry.bytes for entries in gone.values() for entry in entries)
    return f"the working folders of {count(len(runs), 'run')} on {fold.names(gone)}, up to {size(total)}"


def _left(reply: wire.Cleaned) -> bool:
    failed = any(kind.failed for kind in reply.folders.each())
    gpus = any(app.ended for app in reply.gpus or ())
    return bool(reply.orphans or reply.trouble or failed or gpus)


def _found(done: Cleaning) -> Iterator[str]:
    """What is worth a line of its own; hosts that say the same share it."""
    said = [(host, (text,)) for host, reply in done.hosts.items() for text in _texts(reply, done.dry)]
    for hosts, texts in fold.alike(said):
        yield f"{fold.names(hosts)}: {texts[0]}"
    for run in sorted(done.alive):
        yield f"run {run} is alive: it is left alone"


def _texts(reply: wire.Cleaned, dry: bool) -> Iterator[str]:
    for task in reply.settled:
        yield f"{task.task} of run {task.run} was said to run and did not: {task.why}"
    for process in reply.killed:
        yield f"killed {_process(process)}: the run is over"
    for process in reply.orphans:
        yield f"{'would kill' if dry else 'cannot kill'} {_process(process)}: the run is over"
    for app in reply.gpus or ():
        if app.ended:
            yield f"pid {app.pid} of run {app.run}, which is over, holds {_memory(app)} of a GPU"
        elif not app.run:
            yield f"{app.name} pid {app.pid}, none of ours, holds {_memory(app)} of a GPU"
    for port in reply.ports.used:
        yield f"task port {port.port} is in use by {port.words}; no run of ours has it"


def _process(process: wire.Orphan) -> str:
    return f"{process.argv0 or '?'} pid {process.pid}, of {process.task} of run {process.run}"


def _memory(app: wire.GpuUser) -> str:
    return "memory" if app.memory is None else size(app.memory)


def _table(done: Cleaning) -> list[str]:
    if not done.hosts:
        return []
    rows = [(host, tuple(_cells(reply, _kinds(done), done.dry))) for host, reply in done.hosts.items()]
    kinds = _kinds(done)
    head = ["host", "processes", "ports", "GPU memory", *kinds]
    return ["", *grid([head, *([fold.names(hosts), *cells] for hosts, cells in fold.alike(rows))])]


def _kinds(done: Cleaning) -> list[str]:
    """The columns of folders: some only where there is any."""
    there = {kind for kind in _RARE for one in done.hosts.values() if getattr(one.folders, kind).count}
    return [kind for kind in _KINDS if kind not in _RARE or kind in there]


def _cells(reply: wire.Cleaned, kinds: list[str], dry: bool) -> Iterator[str]:
    killed, orphans = len(reply.killed), len(reply.orphans)
    yield f"{orphans} left" if orphans else f"{killed} killed" if killed else "none left"
    leased = [str(port.port) for port in reply.ports.leased]
    yield f"leased: {', '.join(leased)}" if leased else "free"
    if reply.gpus is None:
        yield "no GPU tools"
    else:
        yield "held" if any(app.ended for app in reply.gpus) else "free"
    for name in kinds:
        kind = getattr(reply.folders, name)
        yield _amount(kind.count, kind.bytes, len(kind.gone), sum(one.bytes for one in kind.gone), dry)


def _amount(there: int, total: int, gone: int, gone_bytes: int, dry: bool) -> str:
    """`12 (3.4 GB), 4 removed (1.2 GB)`"""
    if not there:
        return "empty"
    went = f", {gone} {'would go' if dry else 'removed'} ({size(gone_bytes)})" if gone else ""
    return f"{there} ({size(total)}){went}"


def _end(done: Cleaning) -> Iterator[str]:
    here = done.here
    yield ""
    yield f"this machine: runs: {_amount(here.count, here.bytes, len(here.gone), here.gone_bytes, done.dry)}"
    if here.unsure:
        yield f"kept, as it is not known how they ended: {', '.join(here.unsure[:5])}; orchestrate tail RUN"
    if not done.work and any(reply.folders.work.count for reply in done.hosts.values()):
        yield "working folders are kept, with their checkpoints; --work removes those that are old"
    if done.envs is not None and done.alive:
        yield "environments are kept while a run is alive: it may use any of them"
    if done.unreachable:
        yield (
            f"{fold.names(done.unreachable)} cannot be asked: code, environments and working folders are "
            "left alone everywhere, since they may be shared"
        )
    for host, reply in done.hosts.items():
        for error in reply.trouble:
            yield from block(f"{host} {error.said}", error.told)
        for kind in reply.folders.each():
            yield from (line for text in kind.failed for line in block(f"{host}: cannot remove all", text))
    yield from (line for text in here.failed for line in block("cannot remove a run's folder", text))
    if done.hosts:
        proven = "not proven clean" if done.left else "nothing of ended runs is alive"
        yield f"{count(len(done.hosts), 'host')}: {proven}"
    if done.dry:
        yield "nothing was changed; without --dry-run it is done"


def _facts(done: Cleaning) -> Iterator[dict[str, Any]]:
    """A line per host, and one of this machine."""
    for host, reply in done.hosts.items():
        yield {"host": host, "clean": not _left(reply), **msgspec.to_builtins(reply)}
    for host, error in done.unreachable.items():
        yield {
            "host": host,
            "clean": None,
            "error": {"what": error.what, "why": error.why, "try": error.hint},
        }
    here = msgspec.to_builtins(done.here)
    yield {"host": None, "dry": done.dry, "going_on": sorted(done.alive), "runs": here}
