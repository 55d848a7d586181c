"""Entries of hosts.toml that would keep their locks and logs in one folder."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator import wire

SAME_STATE = "they are one machine, and in a state folder one host of a run can be kept"


def same_state(hellos: Iterable[tuple[str, wire.Hello]]) -> dict[str, str]:
    """The hosts whose state folder an earlier one has, and that one."""
    first: dict[tuple[str, str], str] = {}
    shared = {}
    for name, hello in hellos:
        if hello.state_place:
            holder = first.setdefault((hello.boot_id, hello.state_place), name)
            if holder != name:
                shared[name] = holder
    return shared


def other_state(name: str) -> str:
    return f'write state = "{state_for(name)}" for it in hosts.toml'


def state_for(name: str) -> str:
    """A state folder of its own for an entry, beside the default one."""
    return f"/var/tmp/orchestrate-{name}"  # noqa: S108 - the node takes none that is not ours
