"""A host that some list names."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.text import endpoint


@dataclass(frozen=True)
class Candidate:
    """`ssh` is what `ssh` would be given, a port behind a colon."""

    name: str
    ssh: str
    tasks: int = 1
    groups: frozenset[str] = frozenset()
    identity: str | None = None  # a private key, where the list names one


def login(host: str, user: str = "", port: str = "") -> str:
    """`user@host:port`, with the parts that are known."""
    return (f"{user}@" if user else "") + endpoint(host, port)
