"""Hostfiles of mpirun and horovodrun: `host slots=4`, `host:4`, or a line for every slot."""

from __future__ import annotations

import re

from orchestrator.hostlists.candidate import Candidate

_COLON = re.compile(r"([^:]+):([0-9]+)")
_SLOTS = re.compile(r"(?:slots|max_slots|max-slots)=([0-9]+)", re.IGNORECASE)


def read(text: str) -> tuple[Candidate, ...]:
    """Raise ValueError, worded for the user, for a line that names no host."""
    tasks: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host, slots = words[0], 0
        if colon := _COLON.fullmatch(host):
            host, slots = colon[1], int(colon[2])
        for word in words[1:]:
            if (found := _SLOTS.fullmatch(word)) is None:
                raise ValueError(f"line {number} is not `host slots=4`: {line.strip()}")
            slots = slots or int(found[1])
        tasks[host] = tasks.get(host, 0) + (slots or 1)
    return tuple(Candidate(host.rpartition("@")[2], host, count) for host, count in tasks.items())
