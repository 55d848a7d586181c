"""The seal on a plan: proof that whoever holds the user's key has written it. Pure.

A node keeps a plan for whoever takes the run over: compressed, since every host gets it and it grows with
their number, as one word of base64, followed by the seal that is made over its JSON.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import zlib
from dataclasses import dataclass

KEY_BYTES = 32
_DOMAIN = b"orchestrate plan, version 2\n"  # the key may have other uses one day
_LARGEST = 64 << 20  # bytes of a plan: a node may send what opens out to more


@dataclass(frozen=True)
class OpenedPlan:
    """A plan's JSON, and whether it is exactly what a holder of the key has sealed."""

    plan: bytes
    authentic: bool


def seal(plan: bytes, key: bytes | None) -> str:
    """Pack the JSON of a plan with its seal; without a key there is none."""
    packed = base64.b64encode(zlib.compress(plan, 1)).decode()
    return packed if key is None else f"{packed} {_mac(plan, key)}"


def opened(text: str, key: bytes | None) -> OpenedPlan:
    """Take the seal off; without a key, or with another seal than ours, nothing is authentic.

    Raise ValueError for what no plan was packed into.
    """
    packed, _, mac = text.partition(" ")
    try:
        unpacking = zlib.decompressobj()
        plan = unpacking.decompress(base64.b64decode(packed, validate=True), _LARGEST)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"no packed plan: {error}") from error
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError("no packed plan: it ends elsewhere")
    sealed = mac.isascii() and key is not None and hmac.compare_digest(mac, _mac(plan, key))
    return OpenedPlan(plan, sealed)


def _mac(plan: bytes, key: bytes) -> str:
    return hmac.new(key, _DOMAIN + plan, hashlib.sha256).hexdigest()
