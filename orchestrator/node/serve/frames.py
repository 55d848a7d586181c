"""Length-framed messages between controller and agent: a JSON header and raw payload bytes. Pure.

>II (bytes of the header, bytes of the payload) | header as JSON | payload
"""

from __future__ import annotations

import json
import struct
from typing import Any, Dict, Tuple

Frame = Tuple[Dict[str, Any], bytes]

MARKER = b"\x00orchestrate-agent\x00"  # sent before the first frame; what comes earlier is login noise
MAX_HEADER = 16 << 20  # the manifest of a tree of 100,000 files
MAX_PAYLOAD = 64 << 20


SIZES = struct.Struct(">II")


def encode(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """One frame; raise ValueError for one that `Decoder` would refuse."""
    head = json.dumps(header, separators=(",", ":")).encode()
    _check(len(head), len(payload))
    return SIZES.pack(len(head), len(payload)) + head + payload


class Decoder:
    """Cuts a byte stream into frames, however it was split on its way."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._need = SIZES.size  # nothing is looked at before this many bytes are here

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes; raise ValueError for what is not a frame."""
        self._buffer += data
        frames: list[Frame] = []
        start = 0
        while len(self._buffer) - start >= self._need:
            head, body = SIZES.unpack_from(self._buffer, start)
            _check(head, body)
            self._need = SIZES.size + head + body
            if len(self._buffer) - start < self._need:
                break
            frames.append(self._frame(start + SIZES.size, head, body))
            start += self._need
            self._need = SIZES.size
        del self._buffer[:start]
        return frames

    def _frame(self, at: int, head: int, body: int) -> Frame:
        with memoryview(self._buffer) as view:
            header = _json(bytes(view[at : at + head]))
            payload = bytes(view[at + head : at + head + body])
        if not isinstance(header, dict):
            raise ValueError(f"a frame's header must be an object, not {type(header).__name__}")  # noqa: TRY004 - one error for what is not a frame
        return header, payload


def _json(data: bytes) -> Any:
    try:
        return json.loads(data, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("a header that is nested too deep") from None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _check(head: int, body: int) -> None:
    if head > MAX_HEADER or body > MAX_PAYLOAD:
        raise ValueError(f"not a frame: header of {head} bytes, payload of {body} bytes")
