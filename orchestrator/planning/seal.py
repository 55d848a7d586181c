"""The seal on a plan: proof that whoever holds the user's key has written it. Pure.

A node keeps a plan for whoever takes the run over. The seal is the last field of its JSON, made over the
bytes before it; a version that knows of no seal reads the plan all the same.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass

KEY_BYTES = 32
_DOMAIN = b"orchestrate plan, version 1\n"  # the key may have other uses one day
_SEAL = re.compile(r',"seal":"([0-9a-f]{64})"\}\s*\Z', re.ASCII)


@dataclass(frozen=True)
class OpenedPlan:
    """A plan's JSON, and whether it is exactly what a holder of the key has sealed."""

    plan: bytes
    authentic: bool


def seal(plan: bytes, key: bytes) -> str:
    """The JSON of a plan (an object with fields) with its seal; raise ValueError for anything else."""
    if not (plan.startswith(b"{") and plan.endswith(b"}")) or plan == b"{}":
        raise ValueError("a plan is a JSON object with fields")
    return f'{plan[:-1].decode()},"seal":"{_mac(plan, key)}"}}'


def opened(text: str, key: bytes | None) -> OpenedPlan:
    """Take the seal off; without a key, or with another seal than ours, nothing is authentic."""
    found = _SEAL.search(text)
    if found is None:
        return OpenedPlan(_bytes(text), authentic=False)
    plan = _bytes(text[: found.start()]) + b"}"
    return OpenedPlan(plan, key is not None and hmac.compare_digest(found[1], _mac(plan, key)))


def _mac(plan: bytes, key: bytes) -> str:
    return hmac.new(key, _DOMAIN + plan, hashlib.sha256).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")  # JSON may hold half of a surrogate pair: no plan does
