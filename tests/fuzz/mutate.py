"""Makes of a good frame, or of a line of JSON, one that nobody would send in earnest."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

_SIZES = struct.Struct(">II")
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**40, -(10**40), 0.5, -0.0, 1e308),
    *(
        float("inf"),
        float("-inf"),
        float("nan"),
        "",
        "x",
        "\0",
        "\n",
        "\x1b[2J",
        "\u202e",
        "\ud800",
        "é" * 300,
    ),
    *(
        "../../x",
        "/etc/passwd",
        "worker/0",
        "worker/-1",
        "worker/99999999999",
        "1",
        "9" * 5000,
        "x" * 100_000,
    ),
    *([], {}, [[]], [None], {"": 0}, [[[[[[]]]]]], {"a": {"a": {"a": {}}}}),
)


def mutated(dice: random.Random, header: Any) -> Any:
    """JSON with one or a few of its values, names or lengths changed."""
    made = json.loads(json.dumps(header))
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        made = _changed(dice, made)
    return made


def damaged(dice: random.Random, data: bytes) -> bytes:
    """Bytes with a few of them flipped, cut out, repeated or added."""
    made = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(made) + 1)
        match dice.randrange(6):
            case 0 if made:
                made[at % len(made)] ^= 1 << dice.randrange(8)
            case 1:
                del made[at : at + dice.choice((1, 2, 8, 100))]
            case 2:
                made[at:at] = made[at : at + dice.choice((1, 8, 100))]
            case 3:
                made[at:at] = dice.randbytes(dice.choice((1, 2, 8, 100)))
            case 4:
                del made[at:]
            case _:
                made[at:at] = dice.choice(
                    (b"[" * 5000, b'{"a":' * 5000, b"NaN", b"\xff", b"1e999", b'"', b"}")
                )
    return bytes(made)


def frame(header: Any, payload: bytes = b"") -> bytes:
    """A frame, whatever its header is, and without a bound."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return _SIZES.pack(len(head), len(payload)) + head + payload


def _changed(dice: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and dice.random() < 0.85:
        name = dice.choice(list(value))
        match dice.randrange(8):
            case 0:
                return {key: one for key, one in value.items() if key != name}
            case 1:
                return {**value, dice.choice(("id", "ok", "hello", "stream", "kind", "x")): dice.choice(_ODD)}
            case _:
                return {**value, name: _changed(dice, value[name])}
    if isinstance(value, list) and value and dice.random() < 0.7:
        at = dice.randrange(len(value))
        match dice.randrange(4):
            case 0:
                return [*value[:at], *value[at + 1 :]]
            case 1:
                return [*value, *value[at:]]
            case _:
                return [*value[:at], _changed(dice, value[at]), *value[at + 1 :]]
    return dice.choice(_ODD)
