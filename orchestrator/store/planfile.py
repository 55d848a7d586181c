"""plan.json: a run's plan as bytes, and bytes as a plan that everything else can rely on. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from orchestrator.model import Host, RunPlan
from orchestrator.names import AttemptName, Digest, NotANameError, RunId
from orchestrator.text import utf8

MOST = 64 << 20  # bytes of a plan


def encode_plan(plan: RunPlan) -> bytes:
    try:
        data = msgspec.json.encode(plan)
    except UnicodeEncodeError:  # a path or a login name that is no UTF-8
        data = msgspec.json.encode(utf8(msgspec.to_builtins(plan)))
    return msgspec.json.format(data) + b"\n"


def decode_plan(data: bytes) -> RunPlan:
    """The inverse; raise `msgspec.ValidationError` for anything that no plan of ours says."""
    try:
        plan = msgspec.json.decode(data, type=RunPlan)
    except msgspec.ValidationError:
        raise
    except RecursionError:
        raise msgspec.ValidationError("it is nested too deep") from None
    except (ValueError, TypeError) as error:  # truncated, no UTF-8
        raise msgspec.ValidationError(str(error) or type(error).__name__) from error
    for what in _wrong(plan):
        raise msgspec.ValidationError(what)
    return plan


def _wrong(plan: RunPlan) -> Iterator[str]:
    """Name what fits the types, and makes no sense."""
    names = {host.name for host in plan.members}
    if any("\0" in text for text in _texts(msgspec.to_builtins(plan))):
        yield "a text holds a NUL character"
    yield from _wrong_names(plan)
    if not 0 <= plan.created < 1e11:
        yield f"`created` is {plan.created!r}, no moment in seconds since 1970"
    if len({host.name for host in plan.hosts}) != len(plan.hosts):
        yield "two hosts have one name"
    for host in plan.members:
        yield from _wrong_host(host)
    for spec in plan.tasks:
        if spec.host not in {host.name for host in plan.hosts}:
            yield f"`tasks` has {spec.id} on {spec.host[:80]!r}, which is none of its hosts"
        if spec.id.index < 0 or not (spec.argv or plan.hearsay) or not 0 < spec.port < 65_536:
            yield f"`tasks` has {spec.id} with no command, or with port {spec.port}"
    if len({spec.id for spec in plan.tasks}) != len(plan.tasks):
        yield "`tasks` has a task twice"
    spans = (plan.grace, plan.failure_grace, plan.lifeline, plan.hang_timeout, plan.restarts.host_timeout)
    if not all(math.isfinite(span) and 0 <= span <= 1e9 for span in spans):
        yield "a time to wait is negative or longer than thirty years"
    if plan.attempt < 1 or plan.restarts.most < 0:
        yield f"`attempt` is {plan.attempt}, with {plan.restarts.most} restarts"
    for name in plan.preparing.stands_in:
        if name not in names:
            yield f"`preparing` names {name[:80]!r}, which is none of its hosts"


def _wrong_names(plan: RunPlan) -> Iterator[str]:
    try:
        RunId(plan.run)
        AttemptName(str(plan.attempt))
        if plan.tree:
            Digest(plan.tree)
    except NotANameError as error:
        yield str(error)


def _wrong_host(host: Host) -> Iterator[str]:
    if not host.name or not host.ssh or not host.address or host.ssh.startswith("-"):
        yield f"host {host.name[:80]!r} cannot be reached by any name"
    if not (0 < host.task_port < 65_536 and (host.port is None or 0 < host.port < 65_536) and host.tasks > 0):
        yield f"host {host.name[:80]!r} has an impossible port or number of tasks"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _texts(key)
            yield from _texts(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)
