"""The report of `clean`, as lines or as JSON. Pure."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import astuple

from orchestrator import wire
from orchestrator.render import fold
from orchestrator.render.errors import block
from orchestrator.text import count, json_of, size
from orchestrator.verbs.clean import Cleaning, remains

_KINDS = ("state", "code", "data", "envs", "work")


def lines(done: Cleaning, *, json: bool) -> list[str]:
    if json:
        return [json_of(line).decode() for line in _facts(done)]
    # What deserves a line of its own; hosts with the same text share it.
    notices = [(host, (text,)) for host, reply in done.hosts.items() for text in _texts(reply, done.dry)]
    shown = [f"{fold.names(hosts)}: {texts[0]}" for hosts, texts in fold.alike(notices)]
    shown += [f"run {run} is still running: nothing of it was changed" for run in sorted(done.alive)]
    rows = [(host, (_amounts(reply, done.dry),)) for host, reply in done.hosts.items()]
    shown += [f"{fold.names(hosts)}: {texts[0]}" for hosts, texts in fold.alike(rows)]
    return [*shown, *_end(done)]


def _texts(reply: wire.Cleaned, dry: bool) -> Iterator[str]:
    for process in reply.killed:
        yield f"killed {_process(process)}: the run is over"
    for process in reply.orphans:
        yield f"{'would kill' if dry else 'cannot kill'} {_process(process)}: the run is over"


def _process(process: wire.Orphan) -> str:
    if not process.task:
        return f"container {process.argv0} of run {process.run}"
    return f"{process.argv0 or '?'} pid {process.pid}, of {process.task} of run {process.run}"


def _amounts(reply: wire.Cleaned, dry: bool) -> str:
    """Describe what remains of ended runs, and how much of each kind of folder exists and was removed."""
    killed, orphans = len(reply.killed), len(reply.orphans)
    parts = [f"processes {f'{orphans} left' if orphans else f'{killed} killed' if killed else 'none left'}"]
    if reply.standbys:
        parts.append(f"{count(reply.standbys, 'task')} kept warm{'' if dry else ', ended'}")
    for name in _KINDS:
        kind = getattr(reply.folders, name)
        removed = sum(folder.bytes for folder in kind.gone)
        if amount := _amount(kind.count, kind.bytes, len(kind.gone), removed, dry):
            parts.append(f"{name} {amount}")
    return "; ".join(parts)


def _amount(existing: int, total: int, removed: int, gone_bytes: int, dry: bool) -> str:
    """Return `12 (3.4 GB)`, `4 of 12 gone (1.2 GB)`; "" for nothing."""
    if removed:
        return f"{removed} of {existing} {'would go' if dry else 'gone'} ({size(gone_bytes)})"
    return f"{existing} ({size(total)})" if existing else ""


def _end(done: Cleaning) -> Iterator[str]:
    here = done.here
    amount = _amount(here.count, here.bytes, len(here.gone), here.gone_bytes, done.dry) or "none"
    yield f"runs on this machine: {amount}"
    if here.unsure:
        yield f"kept, as their end is unknown: {', '.join(here.unsure[:5])}; orchestrate tail RUN"
    if not done.work and any(reply.folders.work.count for reply in done.hosts.values()):
        yield "working folders are kept, with their checkpoints; --work removes those that are old"
    if done.unreachable:
        yield (
            f"{fold.names(done.unreachable)} cannot be reached: code, environments and working folders "
            "stay everywhere, because they may be shared"
        )
    for host, reply in done.hosts.items():
        for error in reply.trouble:
            yield from block(f"{host} {error.summary}", error.details)
        for kind in astuple(reply.folders):
            yield from (line for text in kind.failed for line in block(f"{host}: cannot remove all", text))
    yield from (line for text in here.failed for line in block("cannot remove a run's folder", text))
    if done.hosts:
        proven = "not proven clean" if done.remains else "no process of an ended run is alive"
        yield f"{count(len(done.hosts), 'host')}: {proven}"
    if done.dry:
        yield "nothing was changed, because of --dry-run"


def _facts(done: Cleaning) -> Iterator[dict[str, Any]]:
    """Return a line per host, and one for this machine."""
    for host, reply in done.hosts.items():
        yield {"host": host, "clean": not remains(reply), **msgspec.to_builtins(reply)}
    for host, error in done.unreachable.items():
        yield {
            "host": host,
            "clean": None,
            "error": {"what": error.what, "why": error.why, "try": error.hint},
        }
    here = msgspec.to_builtins(done.here)
    yield {"host": None, "dry": done.dry, "going_on": sorted(done.alive), "runs": here}
