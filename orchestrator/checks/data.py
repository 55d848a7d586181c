"""Judgement of preflight about the data that [data] names, before anything trains on something else. Pure."""

from __future__ import annotations

from orchestrator import wire
from orchestrator.events import CheckReported, Level
from orchestrator.text import count, size


def of_data(host: str, looked: wire.StoreLooked, total: int, files: int) -> CheckReported:
    """Judge a host that has the data, all `total` bytes, or has not, and may lack the room."""
    all_of_it = f"{size(total)} in {count(files, 'file')}"
    hint = "`orchestrate push`"
    match looked.state:
        case wire.StoreState.WHOLE | wire.StoreState.UNSURE:
            return CheckReported(host, "data", Level.OK, size(total))
        case wire.StoreState.DAMAGED:
            text = f"damaged: {', '.join(looked.wrong)}; launch repairs it"
            return CheckReported(host, "data", Level.WARN, text, hint=hint)
    if looked.free < total:
        text = f"lacks {all_of_it}, and {size(looked.free)} are free"
        hint = "make room there (`orchestrate clean`), or set `workdir` to another disk"
        return CheckReported(host, "data", Level.FAIL, text, why=looked.path, hint=hint)
    return CheckReported(host, "data", Level.WARN, f"lacks {all_of_it}; launch sends it", hint=hint)


def not_prepared(host: str, what: str, hint: str) -> CheckReported:
    """Nobody has it, since it was not made yet."""
    return CheckReported(host, "data", Level.WARN, f"{what}; launch does it", hint=hint)
